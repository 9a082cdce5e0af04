//! Cases with rows: texts that are executed one after the other, and what must come of them on both members.

use tokio_postgres::Client;

use crate::site::Site;

/// Outcome of a case.
pub enum Wants {
    /// It is done, and the members are equal.
    Equal,
    /// It is refused, with this in the message.
    Refused(&'static str),
}

/// A name, the texts, and the outcome.
pub type Case = (&'static str, &'static [&'static str], Wants);

/// Executes texts until one fails: what that says.
fn execute(site: &Site, client: &Client, texts: &[&str]) -> Result<(), String> {
    for text in texts {
        let done = site.runtime.block_on(client.batch_execute(text));
        done.map_err(|error| match error.as_db_error() {
            Some(said) => format!("{text}: {}: {}", said.code().code(), said.message()),
            None => format!("{text}: {error}"),
        })?;
    }
    Ok(())
}

/// Goes through cases: each does what it is to do, and leaves the members equal.
pub fn go_through(site: &Site, client: &Client, cases: &[&Case]) {
    let mut wrong = Vec::new();
    for (what, texts, wants) in cases {
        let done = execute(site, client, texts);
        match (wants, done) {
            (Wants::Equal, Ok(())) => {}
            (Wants::Refused(why), Err(said)) if said.contains("0A000") && said.contains(why) => {}
            (_, done) => wrong.push(format!("{what}: {done:?}")),
        }
        let status = site.status(1 - site.who_serves()).expect("it runs");
        if status.difference.is_some() {
            panic!("{what}: {status:?}; before: {wrong:?}");
        }
        let verdict = site.verify();
        if !verdict.equal {
            wrong.push(format!("{what}: {verdict:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
