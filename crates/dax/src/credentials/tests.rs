use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::*;

fn volume(name: &str) -> VolumeName {
    VolumeName::new(name).unwrap()
}

fn secret() -> Secret {
    Secret::parse(&[7; 32]).unwrap()
}

fn greeting() -> Greeting {
    Greeting {
        volume: volume("main"),
        client: Nonce([1; 32]),
        zone: Nonce([2; 32]),
    }
}

/// Computed with another implementation: Python's `hmac`.
#[test]
fn keys_and_proofs_are_what_the_documentation_says() {
    let key = secret().key(&volume("main"));
    assert_eq!(*key.to_hex(), KEY);
    let proof = |side| hex::encode(key.proof(side, &greeting()).0);
    assert_eq!(proof(Side::Zone), ZONE);
    assert_eq!(proof(Side::Client), CLIENT);
}

#[test]
fn a_proof_is_good_for_one_side_of_one_greeting_of_one_volume() {
    let key = secret().key(&volume("main"));
    let proof = key.proof(Side::Client, &greeting());
    assert!(key.is_proven(Side::Client, &greeting(), &proof));
    assert!(!key.is_proven(Side::Zone, &greeting(), &proof));
    let (mut client, mut zone, mut other) = (greeting(), greeting(), greeting());
    client.client.0[31] ^= 1;
    zone.zone.0[0] ^= 1;
    other.volume = volume("main2");
    for changed in [client, zone, other] {
        assert!(!key.is_proven(Side::Client, &changed, &proof));
    }
    let others = secret().key(&volume("other"));
    assert!(!others.is_proven(Side::Client, &greeting(), &proof));
    let mut damaged = proof;
    damaged.0[5] ^= 0x80;
    assert!(!key.is_proven(Side::Client, &greeting(), &damaged));
}

#[test]
fn secrets_are_hexadecimal_or_raw_and_long_enough() {
    let key = |contents: &[u8]| Secret::parse(contents).map(|s| s.key(&volume("v")));
    let digits = "07".repeat(32);
    let raw = key(&[7; 32]).unwrap();
    assert_eq!(key(digits.as_bytes()).unwrap(), raw);
    assert_eq!(key(format!("\n{digits}\r\n").as_bytes()).unwrap(), raw);
    // A line end is part of raw bytes.
    let mut ended = vec![7; 32];
    ended.push(b'\n');
    assert_ne!(key(&ended).unwrap(), raw);
    for short in [&b""[..], b"\n", &[7; 31], &digits.as_bytes()[..62]] {
        assert_eq!(key(short).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let odd = key(format!("{digits}0").as_bytes()).unwrap_err();
    assert!(odd.to_string().contains("even number"), "{odd}");
}

#[test]
fn keys_come_back_from_their_digits_and_nothing_else_is_one() {
    let key = secret().key(&volume("main"));
    let text = key.to_hex();
    assert_eq!(VolumeKey::parse(text.as_bytes()).unwrap(), key);
    assert_eq!(
        VolumeKey::parse(format!("{}\n", *text).as_bytes()).unwrap(),
        key
    );
    for wrong in [&text[..62], "", &format!("{}00", *text), &"xy".repeat(32)] {
        let error = VolumeKey::parse(wrong.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(!error.to_string().contains("xy"), "{error}");
    }
}

#[test]
fn neither_is_shown() {
    let shown = format!("{:?} {:?}", secret(), secret().key(&volume("main")));
    assert_eq!(shown, "Secret(..) VolumeKey(..)");
}

#[test]
fn random_ones_differ() {
    assert_ne!(Nonce::random().unwrap(), Nonce::random().unwrap());
    let random = || Secret::random().unwrap().to_hex();
    assert_ne!(random(), random());
}

#[test]
fn a_file_that_others_can_open_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    let secret = secret();
    write_new(&path, &secret.to_hex()).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(Secret::load(&path).unwrap().to_hex(), secret.to_hex());
    for mode in [0o640, 0o604, 0o620] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let error = Secret::load(&path).unwrap_err().to_string();
        let remedy = format!("chmod 600 {}", path.display());
        assert!(error.contains(&remedy), "{error}");
        assert!(VolumeKey::load(&path).is_err());
    }
    fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
    Secret::load(&path).unwrap();
}

#[test]
fn a_file_is_never_overwritten_and_errors_name_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("main.key");
    write_new(&path, "no key").unwrap();
    let again = write_new(&path, "other").unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict);
    assert_eq!(fs::read(&path).unwrap(), b"no key\n");
    for error in [
        VolumeKey::load(&path).unwrap_err(),
        Secret::load(&dir.path().join("main.key.missing")).unwrap_err(),
    ] {
        assert!(error.to_string().contains("main.key"), "{error}");
    }
    fs::write(&path, vec![1; 5000]).unwrap();
    let error = Secret::load(&path).unwrap_err().to_string();
    assert!(error.contains("too long"), "{error}");
}

const KEY: &str = "8eee68afc22ef204ed78f58907d29c986716e5931bf692014965a4251717c7ae";
const ZONE: &str = "dc1f2c65137820f24671b91a3d7d2d4196fd09013177303e0c3425b6b330c228";
const CLIENT: &str = "f01838adba8cec146139c0c8492122c3e7272105fc1d0adb53f4ec899d6d2157";
