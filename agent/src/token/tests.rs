use std::{fs, os::unix::fs::PermissionsExt as _};

use lab::certificates::replace;

use super::*;
use crate::logged::logged;

const ONE: &str = "0123456789abcdef";
const OTHER: &str = "A.token_with~all+the/signs-of-it==";

fn headers(authorization: &str) -> HeaderMap {
    HeaderMap::from_iter([(AUTHORIZATION, authorization.parse().unwrap())])
}

#[test]
fn a_call_is_admitted_with_any_of_the_tokens_and_with_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    fs::write(&path, format!("# for the web\n  {ONE}\r\n\n{OTHER}\n")).unwrap();
    let in_force = InForce::new(Tokens::read(path).unwrap());
    for shown in [
        format!("Bearer {ONE}"),
        format!("bearer  {ONE}"),
        format!("Bearer {OTHER}"),
    ] {
        assert_eq!(in_force.admits(&headers(&shown)), Ok(()), "{shown}");
    }
    for shown in [
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        format!("Bearer {}", &ONE[1..]),
        format!("Bearer {}", &ONE[..15]),
        format!("Bearer {ONE}0"),
        format!("Bearer {ONE} {ONE}"),
        format!("Bearer {ONE}\n{OTHER}").replace('\n', ","),
        format!("Basic {ONE}"),
        "Bearer # for the web".to_owned(),
        ONE.to_owned(),
    ] {
        let refused = in_force.admits(&headers(&shown));
        assert_eq!(refused, Err(Unknown::NotOurs), "{shown}");
    }
    let refused = in_force.admits(&HeaderMap::new());
    assert_eq!(refused, Err(Unknown::NotShown));
}

#[test]
fn every_byte_of_a_token_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    fs::write(&path, format!("{ONE}\n{OTHER}\n")).unwrap();
    let in_force = InForce::new(Tokens::read(path).unwrap());
    for ours in [ONE, OTHER] {
        for place in 0..ours.len() {
            let mut shown = ours.as_bytes().to_vec();
            shown[place] = if shown[place] == b'0' { b'1' } else { b'0' };
            let shown = String::from_utf8(shown).unwrap();
            let refused = in_force.admits(&headers(&format!("Bearer {shown}")));
            assert_eq!(refused, Err(Unknown::NotOurs), "{shown}");
        }
    }
    // Of two tokens, the half of each.
    let shown = format!("Bearer {}{}", &ONE[..8], &OTHER[8..16]);
    assert_eq!(in_force.admits(&headers(&shown)), Err(Unknown::NotOurs));
}

#[tokio::test]
async fn the_first_token_of_a_file_is_shown_and_no_log_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    fs::write(&path, format!("{ONE}\n{OTHER}\n")).unwrap();
    let header = TokenFile::new(&path).header().await.unwrap();
    assert_eq!(header, format!("Bearer {ONE}"));
    let (tokens, shown) = (Tokens::read(path).unwrap(), format!("{header:?}"));
    assert!(!format!("{tokens:?}{shown}").contains(ONE));
}

#[test]
fn what_is_no_token_is_told_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let told = || Tokens::read(path.clone()).unwrap_err().to_string();
    assert!(told().contains("tokens: No such file"), "{}", told());
    for (contents, words) in [
        ("", "has no token (openssl rand -hex 32"),
        ("# none\n\n", "has no token"),
        ("0123456789abcde\n", "line 1 of "),
        (&format!("{ONE}\n================\n"), "line 2 of "),
        (&format!("{ONE}\n\n0123456 89abcdef\n"), "line 3 of "),
        ("0123456=789abcdef\n", "line 1 of "),
        ("0123456789abcdéf\n", "line 1 of "),
        (&"a".repeat(1025), "line 1 of "),
        (&format!("{ONE}\n").repeat(1025), "more than 1024 tokens"),
        (&"#".repeat(200_000), "more than 131072 bytes"),
    ] {
        fs::write(&path, contents).unwrap();
        let told = told();
        assert!(told.contains(words), "{told}");
        assert!(!told.contains("0123456"), "{told}");
    }
    fs::write(&path, format!("{ONE}\n").repeat(1024)).unwrap();
    assert!(Tokens::read(path).is_ok());
}

#[test]
fn tokens_that_change_are_in_force_and_those_that_cannot_be_used_are_told_and_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    fs::write(&path, ONE).unwrap();
    let in_force = InForce::new(Tokens::read(path.clone()).unwrap());
    let look = || {
        let mut last = in_force.judged();
        for _ in 0..2 {
            last = in_force.look(&last);
        }
    };
    let is_admitted = |token: &str| {
        in_force
            .admits(&headers(&format!("Bearer {token}")))
            .is_ok()
    };
    replace(&path, "short\n").unwrap();
    let log = logged(look);
    assert!(
        log.contains("the tokens stay as they were: line 1 of "),
        "{log}"
    );
    assert!(is_admitted(ONE));
    replace(&path, OTHER).unwrap();
    let log = logged(look);
    assert!(log.contains("the tokens have been read again"), "{log}");
    assert_eq!([ONE, OTHER].map(is_admitted), [false, true]);
}

#[test]
fn a_file_that_every_user_can_read_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    fs::write(&path, ONE).unwrap();
    for (mode, is_told) in [(0o640, false), (0o644, true)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let log = logged(|| {
            let _ = InForce::new(Tokens::read(path.clone()).unwrap());
        });
        assert_eq!(
            log.contains("every user can read the tokens: chmod o= "),
            is_told,
            "{log}"
        );
    }
}
