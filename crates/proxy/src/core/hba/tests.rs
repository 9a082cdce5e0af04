use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

fn parse(text: &str) -> Result<Rules, Mistake> {
    Rules::parse(text, &|file| match file {
        "staff" => Ok("ann, bob\n# nobody else\n\"all\"\n".to_owned()),
        other => Err(format!("cannot read {other}")),
    })
}

fn from<'a>(database: &'a str, user: &'a str, address: &str, is_encrypted: bool) -> Visitor<'a> {
    Visitor {
        database,
        user,
        address: (!address.is_empty()).then(|| address.parse().expect("an address")),
        is_encrypted,
        is_replication: false,
    }
}

#[test]
fn the_first_rule_that_fits_counts() {
    let rules = parse(
        "# TYPE DATABASE USER ADDRESS METHOD\n\
         local all postgres peer\n\
         local sameuser all scram-sha-256\n\
         host all mallory all reject\n\
         hostssl shop,\"the desk\" @staff 10.1.0.0/16 scram-sha-256\n\
         hostnossl shop all 10.1.2.3/32 trust\n\
         host shop all 192.168.7.0 255.255.255.0 md5\n\
         host all all fd00::/8 trust\n",
    );
    let rules = rules.expect("it is read");
    let method = |visitor| rules.method(&visitor);
    use Method::{Peer, Reject, Scram, Trust};
    for (visitor, expected) in [
        (from("any", "postgres", "", false), Some(Peer)),
        (from("ann", "ann", "", false), Some(Scram)),
        (from("bob", "ann", "", false), None),
        (from("shop", "mallory", "10.1.2.3", true), Some(Reject)),
        (from("shop", "ann", "10.1.255.1", true), Some(Scram)),
        (from("the desk", "bob", "10.1.0.0", true), Some(Scram)),
        (from("shop", "all", "10.1.0.0", true), Some(Scram)),
        (from("shop", "eve", "10.1.0.0", true), None),
        (from("shop", "ann", "10.2.0.0", true), None),
        (from("shop", "eve", "10.1.2.3", false), Some(Trust)),
        (from("shop", "eve", "::ffff:10.1.2.3", false), Some(Trust)),
        (from("shop", "eve", "192.168.7.99", false), Some(Scram)),
        (from("shop", "eve", "192.168.8.0", false), None),
        (from("any", "eve", "fd12::1", true), Some(Trust)),
        (from("any", "eve", "fe80::1", true), None),
    ] {
        assert_eq!(method(visitor), expected, "{visitor:?}");
    }
}

#[test]
fn physical_replication_has_rules_of_its_own() {
    let rules = parse("host all ann all trust\nhost replication bob all trust");
    let rules = rules.expect("it is read");
    let replicates = |user| Visitor {
        is_replication: true,
        ..from("replication", user, "10.0.0.1", false)
    };
    assert_eq!(rules.method(&replicates("ann")), None);
    assert_eq!(rules.method(&replicates("bob")), Some(Method::Trust));
    let database = from("replication", "bob", "10.0.0.1", false);
    assert_eq!(rules.method(&database), None, "a database of that name");
    let rules = parse("host all,\"replication\" bob all trust").expect("it is read");
    assert_eq!(rules.method(&replicates("bob")), None);
}

#[test]
fn mistakes_have_lines_and_reasons() {
    for (text, line, reason) in [
        ("\n\nhosts all all all trust", 3, "\"hosts\""),
        ("host all all\\\n all\\\n tryst\n", 1, "\"tryst\""),
        ("host all", 1, "no user"),
        ("host all all trust", 1, "no address"),
        ("host all all all", 1, "no method"),
        ("local all all", 1, "no method"),
        ("host all all db.example.org trust", 1, "names of hosts"),
        ("host all all samenet trust", 1, "samenet"),
        ("host all all 10.0.0.0/33 trust", 1, "32 bits"),
        ("host all all 10.0.0.1 trust", 1, "10.0.0.1/32"),
        ("host all all 10.0.0.1 ffff:: trust", 1, "families"),
        ("host all all 10.0.0.0/8,10.1.0.0/8 trust", 1, "several"),
        ("host all all all peer", 1, "local"),
        ("host all all all ldap", 1, "\"ldap\""),
        ("host all all all trust map=x", 1, "map=x"),
        ("host all +staff all trust", 1, "memberships"),
        ("host all @staff,@nobody all trust", 1, "cannot read nobody"),
        ("host /^a all all trust", 1, "regular expressions"),
        ("host samerole all all trust", 1, "memberships"),
        ("host all \"\" all trust", 1, "empty name"),
        ("local all all trust\nhost \"all", 2, "quote"),
    ] {
        let mistake = parse(text).expect_err(text);
        assert_eq!(mistake.line, line, "{text}");
        assert!(
            mistake.reason.contains(reason),
            "{text}: {}",
            mistake.reason
        );
    }
}

/// Whatever a file holds, it is read or refused; and no line is left out.
#[test]
fn any_text_is_read_or_refused() {
    let pieces = [
        "host",
        "local",
        "hostssl",
        " ",
        "\t",
        ",",
        "\"",
        "#",
        "\\",
        "\n",
        "all",
        "@staff",
        "+a",
        "/",
        "10.0.0.1",
        "/8",
        "::1",
        "/129",
        "255.0.0.0",
        "trust",
        "peer",
        "é",
        "\0",
        "=",
    ];
    let mut read = 0;
    for seed in 0..20_000 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut text = String::new();
        for _ in 0..rng.random_range(0..14) {
            text.push_str(pieces[rng.random_range(0..pieces.len())]);
            if rng.random_bool(0.5) {
                text.push(' ');
            }
        }
        if let Ok(rules) = parse(&text) {
            let lines = line::joined(&text).into_iter();
            let full =
                lines.filter(|(_, line)| line::fields(line).is_ok_and(|all| !all.is_empty()));
            assert_eq!(full.count(), rules.0.len(), "{text:?}");
            read += rules.0.len();
        }
    }
    assert!(read > 0, "no rule was ever read");
}
