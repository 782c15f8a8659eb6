use std::fs;

use futures_util::FutureExt as _;
use lab::{certificates::replace, log::logged};

use super::*;
use crate::identity::Role;

const ONE: &str = "0123456789abcdef";
const OTHER: &str = "A.token_with~all+the/signs-of-it==";

fn headers(authorization: &str) -> HeaderMap {
    HeaderMap::from_iter([(AUTHORIZATION, authorization.parse().unwrap())])
}

fn line_of(name: &str, roles: &str, token: &str) -> String {
    let identity = Identity::named(name).unwrap();
    line(&identity, Roles::read(roles).unwrap(), token)
}

fn shown(reloadable: &ReloadableTokens, token: &str) -> Result<Grant, Unknown> {
    let shown = reloadable.shown(&headers(&format!("Bearer {token}")));
    shown.map(|shown| shown.grant)
}

#[test]
fn a_token_is_known_by_its_hash_alone_with_its_name_and_roles() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let (one, other) = (
        line_of("Web01", "send", ONE),
        line_of("ops", "observe,status", OTHER),
    );
    fs::write(&path, format!("# of the web\n  {one}\r\n\n{other}")).unwrap();
    assert!(!fs::read_to_string(&path).unwrap().contains(ONE));
    let reloadable = ReloadableTokens::new(Known::read(path).unwrap());
    for authorization in [format!("Bearer {ONE}"), format!("bearer  {ONE}")] {
        let grant = reloadable.shown(&headers(&authorization)).unwrap().grant;
        assert_eq!(grant.identity, Identity::named("web01").unwrap());
        assert!(grant.roles.has(Role::Send) && !grant.roles.has(Role::Status));
    }
    let reader = shown(&reloadable, OTHER).unwrap();
    assert_eq!(reader.identity.to_string(), "ops");
    assert!(!reader.roles.has(Role::Send) && reader.roles.has(Role::Observe));
    let same_len = ONE.replace('0', "1");
    for authorization in [
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        format!("Bearer {same_len}"),
        format!("Bearer {}", &ONE[1..]),
        format!("Bearer {ONE}0"),
        format!("Bearer {ONE} {ONE}"),
        format!("Bearer {ONE},{OTHER}"),
        format!("Basic {ONE}"),
        // The hash in the file is not a token.
        format!("Bearer {}", one.split_once(HASH).unwrap().1.trim()),
        format!("Bearer {}", one.split(' ').next_back().unwrap().trim()),
        ONE.to_owned(),
    ] {
        let refused = reloadable.shown(&headers(&authorization)).err();
        assert_eq!(refused, Some(Unknown::NotOurs), "{authorization}");
    }
    let refused = reloadable.shown(&HeaderMap::new()).err();
    assert_eq!(refused, Some(Unknown::NotShown));
}

#[test]
fn every_byte_of_a_token_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let lines = [ONE, OTHER].map(|token| line_of("a", "send", token));
    fs::write(&path, lines.concat()).unwrap();
    let reloadable = ReloadableTokens::new(Known::read(path).unwrap());
    for ours in [ONE, OTHER] {
        for place in 0..ours.len() {
            let mut other = ours.as_bytes().to_vec();
            other[place] = if other[place] == b'0' { b'1' } else { b'0' };
            let other = String::from_utf8(other).unwrap();
            assert_eq!(shown(&reloadable, &other), Err(Unknown::NotOurs), "{other}");
        }
    }
}

#[test]
fn what_is_no_line_of_a_token_is_told_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let told = || Known::read(path.clone()).unwrap_err().to_string();
    assert!(told().contains("tokens: No such file"), "{}", told());
    let good = line_of("a", "send", ONE);
    let hash = good.split(' ').next_back().unwrap().trim();
    let many: String = (0..=MOST_TOKENS)
        .map(|number| line_of("a", "send", &format!("{number}")))
        .collect();
    for (contents, words) in [
        ("", "has no token"),
        ("# none\n\n", "has no token"),
        // A file from before tokens had names.
        (ONE, "line 1 of "),
        (&format!("{good}\n{ONE}\n"), "line 3 of "),
        (&format!("a send {ONE}"), "line 1 of "),
        (&format!("a all {hash}"), "line 1 of "),
        (&format!("a: send {hash}"), "line 1 of "),
        (&format!("a send {hash} b"), "line 1 of "),
        (&format!("a send {}", &hash[1..]), "line 1 of "),
        (&format!("a send {hash}0"), "line 1 of "),
        (&good.replace(HASH, "sha256:é"), "line 1 of "),
        (&format!("{good}b send {hash}\n"), "line 2 of "),
        (&many, "more than 16384 tokens"),
    ] {
        fs::write(&path, contents).unwrap();
        let told = told();
        assert!(told.contains(words), "{contents}: {told}");
        assert!(!told.contains(ONE), "{told}");
    }
    let most = many.lines().skip(1).collect::<Vec<_>>().join("\n");
    for taken in [format!("{good}{good}"), most] {
        fs::write(&path, taken).unwrap();
        assert!(Known::read(path.clone()).is_ok());
    }
}

#[test]
fn tokens_that_change_are_in_force_and_those_that_cannot_be_used_are_told_and_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let one = line_of("a", "send", ONE);
    fs::write(&path, &one).unwrap();
    let reloadable = ReloadableTokens::new(Known::read(path.clone()).unwrap());
    let look = || {
        let mut last = reloadable.tried();
        for _ in 0..2 {
            last = reloadable.check(&last);
        }
    };
    let held = reloadable
        .shown(&headers(&format!("Bearer {ONE}")))
        .unwrap();
    let mut withdrawn = Box::pin(reloadable.clone().withdrawn(held));
    replace(&path, "short\n").unwrap();
    let log = logged(look);
    assert!(
        log.contains("keeping the tokens as read before: line 1 of "),
        "{log}"
    );
    // Another token of the same name does not affect the first.
    replace(&path, &format!("{one}{}", line_of("a", "send", OTHER))).unwrap();
    let log = logged(look);
    assert!(log.contains("read the tokens again"), "{log}");
    assert!([ONE, OTHER].map(|token| shown(&reloadable, token).is_ok()) == [true; 2]);
    assert!(withdrawn.as_mut().now_or_never().is_none());
    replace(&path, &line_of("a", "send", OTHER)).unwrap();
    look();
    assert_eq!(shown(&reloadable, ONE), Err(Unknown::NotOurs));
    assert!(shown(&reloadable, OTHER).is_ok());
    assert!(withdrawn.now_or_never().is_some());
}

#[test]
fn a_token_that_is_good_for_less_is_withdrawn_from_what_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    fs::write(&path, line_of("a", "send,observe", ONE)).unwrap();
    let reloadable = ReloadableTokens::new(Known::read(path.clone()).unwrap());
    let held = reloadable
        .shown(&headers(&format!("Bearer {ONE}")))
        .unwrap();
    replace(&path, &line_of("a", "send", ONE)).unwrap();
    reloadable.replace(Known::read(path).unwrap());
    assert!(reloadable.withdrawn(held).now_or_never().is_some());
}
