//! `tls-server-end-point`: the hash of a server's certificate that both sides of a channel binding compare (RFC 5929).

use sha2::{Digest, Sha256, Sha384, Sha512};

/// The hash that a certificate's own signature is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// `md5WithRSAEncryption` and its neighbours, and the beginnings of ECDSA's, in DER.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04];

/// The tag of a sequence in DER, and of an object identifier.
const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;

/// What clients bind to that were shown `certificate`. None if its signature is of a kind for which no hash is named.
pub(super) fn of(certificate: &[u8]) -> Option<Vec<u8>> {
    let hash = hash_of(signature_algorithm(certificate)?)?;
    Some(match hash {
        Hash::Sha256 => Sha256::digest(certificate).to_vec(),
        Hash::Sha384 => Sha384::digest(certificate).to_vec(),
        Hash::Sha512 => Sha512::digest(certificate).to_vec(),
    })
}

/// MD5 and SHA-1 are not good enough for this: SHA-256 takes their place.
fn hash_of(algorithm: &[u8]) -> Option<Hash> {
    let of_rsa = algorithm.strip_prefix(RSA);
    match of_rsa.or_else(|| algorithm.strip_prefix(ECDSA))? {
        [4 | 5 | 11] if of_rsa.is_some() => Some(Hash::Sha256),
        [12] if of_rsa.is_some() => Some(Hash::Sha384),
        [13] if of_rsa.is_some() => Some(Hash::Sha512),
        [1] | [3, 2] if of_rsa.is_none() => Some(Hash::Sha256),
        [3, 3] if of_rsa.is_none() => Some(Hash::Sha384),
        [3, 4] if of_rsa.is_none() => Some(Hash::Sha512),
        _ => None,
    }
}

/// The object identifier of a certificate's signature: the first of its second part.
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    let (parts, _) = take(certificate, SEQUENCE)?;
    let (_, after_signed) = take(parts, SEQUENCE)?;
    let (algorithm, _) = take(after_signed, SEQUENCE)?;
    Some(take(algorithm, OBJECT_IDENTIFIER)?.0)
}

/// The content of the value that `der` begins with, and what comes after it.
fn take(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (first, rest) = der.split_first()?;
    let (length, rest) = rest.split_first()?;
    if *first != tag {
        return None;
    }
    if length & 0x80 == 0 {
        return rest.split_at_checked(usize::from(*length));
    }
    let (length, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
    if length.len() > size_of::<u32>() {
        return None;
    }
    let shift = |length: usize, byte: &u8| length << 8 | usize::from(*byte);
    rest.split_at_checked(length.iter().fold(0, shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(algorithm: &'static rcgen::SignatureAlgorithm) -> Vec<u8> {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let params = rcgen::CertificateParams::new(["db".to_owned()]).unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_hash_is_that_of_the_signature() {
        let one = certificate(&rcgen::PKCS_ECDSA_P256_SHA256);
        assert_eq!(of(&one), Some(Sha256::digest(&one).to_vec()));
        let other = certificate(&rcgen::PKCS_ECDSA_P384_SHA384);
        assert_eq!(of(&other), Some(Sha384::digest(&other).to_vec()));
        assert_eq!(of(&certificate(&rcgen::PKCS_ED25519)), None);
    }

    #[test]
    fn every_algorithm_has_the_hash_that_the_rfc_says() {
        let rsa = |last: u8| hash_of(&[RSA, &[last]].concat());
        assert_eq!([4, 5, 11].map(rsa), [Some(Hash::Sha256); 3]);
        assert_eq!(rsa(12), Some(Hash::Sha384));
        assert_eq!(rsa(13), Some(Hash::Sha512));
        // RSA-PSS has its hash elsewhere.
        assert_eq!(rsa(10), None);
        let ecdsa = |last: &[u8]| hash_of(&[ECDSA, last].concat());
        assert_eq!(ecdsa(&[1]), Some(Hash::Sha256));
        assert_eq!(ecdsa(&[3, 4]), Some(Hash::Sha512));
        assert_eq!(ecdsa(&[4]), None);
    }

    #[test]
    fn invalid_certificates_have_no_endpoint_hash() {
        let whole = certificate(&rcgen::PKCS_ECDSA_P256_SHA256);
        for len in 0..whole.len() / 2 {
            assert_eq!(of(&whole[..len]), None, "{len}");
        }
        assert_eq!(
            of(&[SEQUENCE, 0x84, 0xff, 0xff, 0xff, 0xff, SEQUENCE]),
            None
        );
        assert_eq!(of(&[SEQUENCE, 0xff]), None);
    }
}
