//! Rules of who may come from where, as PostgreSQL's `pg_hba.conf` and PgBouncer's `auth_hba_file` write them.
//!
//! Invariants: the first rule that fits counts, and who fits none is not let in; a line that is not understood is an error of
//! the whole file, never a rule that is left out.

use std::net::IpAddr;

mod line;

use line::Token;

/// Proof that a rule asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// A password, by SCRAM.
    Scram,
    /// None.
    Trust,
    /// The name of the user of the operating system, over a Unix socket.
    Peer,
    /// Nobody is let in.
    Reject,
}

/// A client that asks to be let in.
#[derive(Debug, Clone, Copy)]
pub struct Visitor<'a> {
    /// The database that it asks for.
    pub database: &'a str,
    /// The role that it asks for.
    pub user: &'a str,
    /// Its address; none over a Unix socket.
    pub address: Option<IpAddr>,
    /// The connection is encrypted.
    pub is_encrypted: bool,
    /// It replicates physically: no name of a database but `replication` fits.
    pub is_replication: bool,
}

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Number of the line, from 1.
    pub line: usize,
    /// Reason, with what is allowed.
    pub reason: String,
}

/// Rules in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    channel: Channel,
    databases: Vec<Database>,
    users: Vec<User>,
    method: Method,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channel {
    Local,
    Host {
        /// Encryption that the connection must have, or must not have, if that matters.
        is_encrypted: Option<bool>,
        network: Network,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Database {
    All,
    SameUser,
    Replication,
    Named(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum User {
    All,
    Named(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    All,
    /// Bits of addresses of one family, and those of them that count.
    Bits {
        is_v6: bool,
        address: u128,
        mask: u128,
    },
}

impl Rules {
    /// Reads a file. `include` returns the text of a file that a field names by `@FILE`.
    ///
    /// # Errors
    /// The first line that is not understood.
    pub fn parse(
        text: &str,
        include: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Rules, Mistake> {
        let mut rules = Vec::new();
        for (number, text) in line::joined(text) {
            let rule = read(&text, include).map_err(|reason| Mistake {
                line: number,
                reason,
            })?;
            rules.extend(rule);
        }
        Ok(Rules(rules))
    }

    /// Proof that a visitor has to bring; none if no rule fits.
    pub fn method(&self, visitor: &Visitor<'_>) -> Option<Method> {
        let rule = self.0.iter().find(|rule| rule.fits(visitor))?;
        Some(rule.method)
    }
}

impl Rule {
    fn fits(&self, visitor: &Visitor<'_>) -> bool {
        let mut databases = self.databases.iter();
        let mut users = self.users.iter();
        self.channel.fits(visitor)
            && databases.any(|one| match one {
                Database::Replication => visitor.is_replication,
                _ if visitor.is_replication => false,
                Database::All => true,
                Database::SameUser => visitor.database == visitor.user,
                Database::Named(name) => visitor.database == name,
            })
            && users.any(|one| match one {
                User::All => true,
                User::Named(name) => visitor.user == name,
            })
    }
}

impl Channel {
    fn fits(self, visitor: &Visitor<'_>) -> bool {
        match (self, visitor.address) {
            (Channel::Local, None) => true,
            (
                Channel::Host {
                    is_encrypted,
                    network,
                },
                Some(address),
            ) => {
                is_encrypted.is_none_or(|must| must == visitor.is_encrypted)
                    && network.has(address.to_canonical())
            }
            _ => false,
        }
    }
}

/// Bits of an address, and how many there are.
fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

impl Network {
    fn has(self, of: IpAddr) -> bool {
        match self {
            Network::All => true,
            Network::Bits {
                is_v6,
                address,
                mask,
            } => of.is_ipv6() == is_v6 && bits(of).0 & mask == address & mask,
        }
    }
}

/// The rule of a line; none if it is empty.
fn read(
    text: &str,
    include: &dyn Fn(&str) -> Result<String, String>,
) -> Result<Option<Rule>, String> {
    let fields = line::fields(text)?;
    let mut fields = fields.into_iter();
    let Some(kind) = fields.next() else {
        return Ok(None);
    };
    let kind = single(kind, "type")?;
    let is_encrypted = match kind.text.as_str() {
        "local" | "host" => None,
        "hostssl" => Some(true),
        "hostnossl" => Some(false),
        other => {
            return Err(format!(
                "\"{other}\" is no type of connection: write local, host, hostssl or hostnossl"
            ));
        }
    };
    let databases = names(fields.next(), "database", include)?;
    let users = names(fields.next(), "user", include)?;
    let channel = match kind.text.as_str() {
        "local" => Channel::Local,
        _ => {
            let address = fields.next().ok_or("the line has no address")?;
            let network = network(&single(address, "address")?, &mut fields)?;
            Channel::Host {
                is_encrypted,
                network,
            }
        }
    };
    let method = fields.next().ok_or("the line has no method")?;
    let method = method_of(&single(method, "method")?.text, channel)?;
    if let Some(option) = fields.next() {
        let option = single(option, "option")?.text;
        return Err(format!(
            "\"{option}\" behind the method: options are not supported"
        ));
    }
    Ok(Some(Rule {
        channel,
        databases: databases
            .iter()
            .map(database)
            .collect::<Result<_, String>>()?,
        users: users.iter().map(user).collect::<Result<_, String>>()?,
        method,
    }))
}

fn single(field: Vec<Token>, what: &str) -> Result<Token, String> {
    match <[Token; 1]>::try_from(field) {
        Ok([token]) => Ok(token),
        Err(_) => Err(format!("several values in the field {what}")),
    }
}

/// The names in a field, with those of files that it names.
fn names(
    field: Option<Vec<Token>>,
    what: &str,
    include: &dyn Fn(&str) -> Result<String, String>,
) -> Result<Vec<Token>, String> {
    let field = field.ok_or_else(|| format!("the line has no {what}"))?;
    let mut names = Vec::new();
    for token in field {
        match token.text.strip_prefix('@') {
            Some(file) if !token.is_quoted => {
                for line in include(file)?.lines() {
                    names.extend(line::fields(line)?.into_iter().flatten());
                }
            }
            _ => names.push(token),
        }
    }
    match names.iter().any(|token| token.text.is_empty()) {
        true => Err(format!("an empty name of a {what}")),
        false => Ok(names),
    }
}

fn unsupported(token: &Token, what: &str) -> String {
    format!("\"{}\": {what} are not supported", token.text)
}

fn database(token: &Token) -> Result<Database, String> {
    if token.is_quoted {
        return Ok(Database::Named(token.text.clone()));
    }
    match token.text.as_str() {
        "all" => Ok(Database::All),
        "sameuser" => Ok(Database::SameUser),
        "replication" => Ok(Database::Replication),
        "samerole" | "samegroup" => Err(unsupported(token, "memberships of roles")),
        name if name.starts_with('/') => Err(unsupported(token, "regular expressions")),
        name if name.starts_with('@') => Err(unsupported(token, "files within files")),
        name => Ok(Database::Named(name.to_owned())),
    }
}

fn user(token: &Token) -> Result<User, String> {
    if token.is_quoted {
        return Ok(User::Named(token.text.clone()));
    }
    match token.text.as_str() {
        "all" => Ok(User::All),
        name if name.starts_with('+') => Err(unsupported(token, "memberships of roles")),
        name if name.starts_with('/') => Err(unsupported(token, "regular expressions")),
        name if name.starts_with('@') => Err(unsupported(token, "files within files")),
        name => Ok(User::Named(name.to_owned())),
    }
}

/// The addresses of a rule: `all`, `ADDRESS/BITS`, or an address and in the next field its mask.
fn network(
    token: &Token,
    fields: &mut impl Iterator<Item = Vec<Token>>,
) -> Result<Network, String> {
    let text = token.text.as_str();
    if text == "all" && !token.is_quoted {
        return Ok(Network::All);
    }
    let no_address = || {
        format!(
            "\"{text}\" is no address: write all, ADDRESS/BITS, or an address and its mask (names of hosts, samehost and \
             samenet are not supported)"
        )
    };
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| no_address())?;
    let (own, most) = bits(address);
    let mask = match length {
        Some(length) => {
            let length: u32 = length.parse().map_err(|_| no_address())?;
            if length > most {
                return Err(format!("\"{text}\": an address has {most} bits"));
            }
            let all = u128::MAX >> (128 - most);
            all & !all.checked_shr(length).unwrap_or(0)
        }
        None => {
            let mask = fields.next().map(|field| single(field, "mask"));
            let mask = mask.transpose()?.and_then(|mask| mask.text.parse().ok());
            let mask: IpAddr = mask.ok_or_else(|| {
                format!("\"{text}\" has no mask: write {text}/{most} for one address")
            })?;
            if mask.is_ipv6() != address.is_ipv6() {
                return Err(format!("\"{text}\" and its mask are of different families"));
            }
            bits(mask).0
        }
    };
    Ok(Network::Bits {
        is_v6: address.is_ipv6(),
        address: own,
        mask,
    })
}

fn method_of(name: &str, channel: Channel) -> Result<Method, String> {
    match name {
        // As PostgreSQL does it where the password is kept for SCRAM, and others cannot log in here.
        "scram-sha-256" | "md5" => Ok(Method::Scram),
        "trust" => Ok(Method::Trust),
        "reject" => Ok(Method::Reject),
        "peer" if channel == Channel::Local => Ok(Method::Peer),
        "peer" => Err("\"peer\" works with local only".to_owned()),
        other => Err(format!(
            "\"{other}\" is no method: write scram-sha-256, trust, peer or reject"
        )),
    }
}

#[cfg(test)]
mod tests;
