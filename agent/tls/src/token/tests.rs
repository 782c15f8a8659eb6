use std::fs;

use super::*;

const ONE: &str = "0123456789abcdef";
const OTHER: &str = "A.token_with~all+the/signs-of-it==";

#[tokio::test]
async fn the_first_token_of_a_file_is_shown_and_no_log_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    fs::write(&path, format!("# of the web\n  {ONE}\r\n\n{OTHER}\n")).unwrap();
    let header = TokenFile::new(&path).header().await.unwrap();
    assert_eq!(header, format!("Bearer {ONE}"));
    assert!(!format!("{header:?}").contains(ONE));
}

#[test]
fn what_is_no_token_is_told_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let told = || first_of(&path).unwrap_err().to_string();
    assert!(told().contains("token: No such file"), "{}", told());
    for (contents, words) in [
        ("", "has no token"),
        ("# none\n\n", "has no token"),
        ("0123456789abcde\n", "line 1 of "),
        ("================\n", "line 1 of "),
        ("\n\n0123456 89abcdef\n", "line 3 of "),
        ("0123456=789abcdef\n", "line 1 of "),
        ("0123456789abcdéf\n", "line 1 of "),
        (&"a".repeat(1025), "line 1 of "),
        (&"#".repeat(200_000), "more than 131072 bytes"),
    ] {
        fs::write(&path, contents).unwrap();
        let told = told();
        assert!(told.contains(words), "{told}");
        assert!(!told.contains("0123456"), "{told}");
    }
}

#[test]
fn every_token_that_is_made_is_another_one() {
    let tokens = [(); 2].map(|()| made().unwrap());
    assert_ne!(tokens[0], tokens[1]);
    for made in tokens {
        assert_eq!(token(made.as_bytes()), Some(&*made));
        assert_eq!(made.len(), 2 * MADE_BYTES);
    }
}
