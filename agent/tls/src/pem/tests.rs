use std::{fs, os::unix::fs::PermissionsExt as _};

use lab::certificates::{Ca, Issued, pem, replace};

use super::{super::provider, *};
use crate::reload::Stamps;

fn read(issued: &Issued) -> Result<Identity, FileFault> {
    Identity::read(&issued.certificate, &issued.key, &provider())
}

#[test]
fn a_certificate_is_read_with_the_time_for_which_it_is_issued() {
    let ca = Ca::new().unwrap();
    let epoch = SystemTime::UNIX_EPOCH;
    let now = epoch.elapsed().unwrap().as_secs();
    // Times from 2050 on have another encoding (RFC 5280, 4.1.2.5); the last one is 9999-12-31T23:59:59Z.
    for (from, to) in [
        (now - 9, now + 9),
        (0, 2_524_607_999),
        (1, 2_524_608_000),
        (now - 9, 253_402_300_799),
    ] {
        let [from, to] = [from, to].map(Duration::from_secs);
        let issued = ca.issue_for("a", "here", [epoch + from, epoch + to]);
        let identity = read(&issued.unwrap()).unwrap();
        let validity = Validity {
            not_before: from,
            not_after: to,
        };
        assert_eq!(identity.validity, validity);
        assert!(identity.warnings.is_empty(), "{:?}", identity.warnings);
        assert_eq!(identity.key.cert.len(), 1);
    }
}

#[test]
fn a_certificate_that_does_not_hold_now_and_an_open_key_are_warned_of() {
    let ca = Ca::new().unwrap();
    let (now, hour) = (SystemTime::now(), Duration::from_hours(1));
    for (validity, words) in [
        ([now - 2 * hour, now - hour], "a.pem expired at "),
        ([now + hour, now + 2 * hour], "a.pem is valid only from "),
    ] {
        let issued = ca.issue_for("a", "here", validity).unwrap();
        let [warning] = &read(&issued).unwrap().warnings[..] else {
            panic!("one warning");
        };
        assert!(warning.contains(words), "{warning}");
    }
    let issued = ca.issue("a", "here").unwrap();
    for (mode, is_open) in [(0o640, false), (0o400, false), (0o644, true), (0o604, true)] {
        fs::set_permissions(&issued.key, fs::Permissions::from_mode(mode)).unwrap();
        let warnings = read(&issued).unwrap().warnings;
        let told = warnings.iter().any(|told| told.contains("chmod o="));
        assert_eq!(told, is_open, "{mode:o}");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_told_with_its_name_and_its_use() {
    let ca = Ca::new().unwrap();
    let good = ca.issue("good", "here").unwrap();
    let other = ca.issue("other", "here").unwrap();
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    let file = |name: &str, text: &str| {
        let path = ca.path(name);
        replace(&path, text).unwrap();
        path
    };
    let without = |name: &str| Issued {
        certificate: file(name, "no PEM\n"),
        ..good.clone()
    };
    let half = text(&good.certificate).replace("-----END CERTIFICATE-----", "");
    let with_key = |key| Issued {
        key,
        ..good.clone()
    };
    let locked = pem("ENCRYPTED PRIVATE KEY", b"abc");
    let cases = [
        (
            without("none.pem"),
            Use::Certificate,
            "none.pem has no certificate (PEM",
        ),
        (
            Issued {
                certificate: file("half.pem", &half),
                ..good.clone()
            },
            Use::Certificate,
            "half.pem is not a complete PEM file",
        ),
        (
            Issued {
                certificate: file("junk.pem", &pem("CERTIFICATE", b"junk")),
                ..good.clone()
            },
            Use::Certificate,
            "junk.pem: ",
        ),
        (
            Issued {
                certificate: ca.path("gone.pem"),
                ..good.clone()
            },
            Use::Certificate,
            "gone.pem: No such file",
        ),
        (
            Issued {
                certificate: "/dev/zero".into(),
                ..good.clone()
            },
            Use::Certificate,
            "/dev/zero: it is not a regular file",
        ),
        (
            Issued {
                certificate: file("large.pem", &"a".repeat((1 << 20) + 1)),
                ..good.clone()
            },
            Use::Certificate,
            "large.pem: it has more than 1048576 bytes",
        ),
        (
            with_key(ca.path("gone.key")),
            Use::Key,
            "gone.key: No such file",
        ),
        (
            with_key(good.certificate.clone()),
            Use::Key,
            "good.pem has no private key",
        ),
        (
            with_key(file("locked.key", &locked)),
            Use::Key,
            "locked.key has a passphrase",
        ),
        (
            with_key(file("junk.key", &pem("PRIVATE KEY", b"junk"))),
            Use::Key,
            "junk.key: ",
        ),
        (
            with_key(other.key),
            Use::Key,
            "other.key is not the key of the certificate in ",
        ),
    ];
    for (issued, of, words) in cases {
        let fault = read(&issued).unwrap_err();
        assert_eq!(fault.of, of, "{fault}");
        assert!(fault.to_string().contains(words), "{fault}");
    }
}

#[test]
fn what_is_wrong_with_a_file_of_cas_is_told_too() {
    let ca = Ca::new().unwrap();
    replace(&ca.path("none.pem"), "no PEM\n").unwrap();
    replace(&ca.path("junk.pem"), &pem("CERTIFICATE", b"junk")).unwrap();
    for (path, words) in [
        (ca.path("none.pem"), "none.pem has no certificate"),
        (ca.path("junk.pem"), "junk.pem: "),
        (ca.path("gone.pem"), "gone.pem: No such file"),
    ] {
        let fault = roots(&path).unwrap_err();
        assert_eq!(fault.of, Use::Ca);
        assert!(fault.to_string().contains(words), "{fault}");
    }
    assert_eq!(roots(&ca.file()).unwrap().len(), 1);
}

#[test]
fn a_file_that_is_replaced_written_or_gone_has_another_stamp() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| folder.path().join(name));
    let mut last = Stamps::of(&paths);
    let mut is_new = |what| {
        let stamps = Stamps::of(&paths);
        assert_eq!(stamps, Stamps::of(&paths));
        assert_ne!(stamps, last, "{what}");
        last = stamps;
    };
    replace(&paths[0], "one").unwrap();
    is_new("it is there");
    replace(&paths[0], "two").unwrap();
    is_new("it is replaced");
    fs::write(&paths[0], "three").unwrap();
    is_new("it is written");
    replace(&paths[1], "three").unwrap();
    is_new("the other is there");
    let target = folder.path().join("target");
    std::os::unix::fs::symlink(&target, folder.path().join("link")).unwrap();
    fs::write(&target, "three").unwrap();
    fs::rename(folder.path().join("link"), &paths[1]).unwrap();
    is_new("it leads elsewhere");
    fs::remove_file(&target).unwrap();
    is_new("it leads nowhere");
}
