//! The network file: what lies between zones.
//!
//! ```toml
//! seed = 1                       # of jitter and loss; default 0
//!
//! [[link]]
//! between = ["east", "west"]     # two zones, or the same twice; pairs not listed are no distance apart
//! latency = "17ms"               # one way; all of these default to nothing
//! jitter = "1ms"                 # added to it, up to this
//! loss = 0.001                   # probability that a chunk has to be sent again,
//! rto = "200ms"                  # which takes so long; default 200ms
//! cut = false                    # nothing is delivered, either way
//! ```

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why a network file is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// It cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It is no TOML, or has keys that nothing reads, or values of the wrong type.
    #[error(transparent)]
    Syntax(#[from] toml::de::Error),
    /// A value that cannot work.
    #[error("link between {between:?}: {why}")]
    Invalid {
        /// Which link.
        between: [String; 2],
        /// What to change.
        why: &'static str,
    },
}

/// What lies between zones, as the file says it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Seed of the random numbers for jitter and loss.
    #[serde(default)]
    pub seed: u64,
    /// Pairs of zones with a distance. Other pairs have none.
    #[serde(default, rename = "link")]
    pub links: Vec<Link>,
}

/// What lies between two zones, both ways alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Names of the two zones, or twice the same name for connections within a zone.
    pub between: [String; 2],
    /// Least time for one way.
    #[serde(default, with = "humantime_serde")]
    pub latency: Duration,
    /// Most time that is added to the latency, evenly distributed.
    #[serde(default, with = "humantime_serde")]
    pub jitter: Duration,
    /// Probability, 0 to 1, that a chunk of bytes is delayed by `rto`, as a lost packet delays a TCP connection.
    #[serde(default)]
    pub loss: f64,
    /// Retransmission timeout.
    #[serde(default = "default_rto", with = "humantime_serde")]
    pub rto: Duration,
    /// Delivers nothing either way. Bytes that were sent meanwhile are delivered afterwards.
    #[serde(default)]
    pub cut: bool,
}

fn default_rto() -> Duration {
    Duration::from_millis(200)
}

impl Link {
    /// Two zones no distance apart.
    pub fn new(a: &str, b: &str) -> Link {
        Link {
            between: [a.to_owned(), b.to_owned()],
            latency: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            rto: default_rto(),
            cut: false,
        }
    }

    fn is_between(&self, a: &str, b: &str) -> bool {
        let [x, y] = &self.between;
        (x == a && y == b) || (x == b && y == a)
    }
}

impl Network {
    /// Reads and checks the text of a file.
    ///
    /// # Errors
    /// [`NetworkError`]; each says what to change.
    pub fn parse(text: &str) -> Result<Network, NetworkError> {
        let network: Network = toml::from_str(text)?;
        for (at, link) in network.links.iter().enumerate() {
            let [a, b] = &link.between;
            let refuse = |why| {
                let between = link.between.clone();
                Err(NetworkError::Invalid { between, why })
            };
            if !(0.0..=1.0).contains(&link.loss) {
                return refuse("loss is a probability, from 0 to 1");
            }
            if a.is_empty() || b.is_empty() {
                return refuse("a zone has a name");
            }
            if network.links[..at].iter().any(|l| l.is_between(a, b)) {
                return refuse("the pair is listed twice");
            }
        }
        Ok(network)
    }

    /// Writes the file, replacing another one whole, so that nobody reads half of it.
    ///
    /// # Errors
    /// [`NetworkError::Io`].
    pub fn write(&self, file: &Path) -> Result<(), NetworkError> {
        let text = toml::to_string(self).map_err(std::io::Error::other)?;
        let fresh = file.with_extension("fresh");
        std::fs::write(&fresh, text)?;
        Ok(std::fs::rename(fresh, file)?)
    }

    /// What lies between two zones, if the file says.
    pub fn link(&self, a: &str, b: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.is_between(a, b))
    }

    /// The same to change it; a pair that was not listed is from now on.
    pub fn link_mut(&mut self, a: &str, b: &str) -> &mut Link {
        let found = self.links.iter().position(|link| link.is_between(a, b));
        let at = found.unwrap_or_else(|| {
            self.links.push(Link::new(a, b));
            self.links.len() - 1
        });
        &mut self.links[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_file_is_read() {
        let text = "seed = 1\n[[link]]\nbetween = [\"east\", \"west\"]\nlatency = \"17ms\"\n\
                    jitter = \"1ms\"\nloss = 0.001\ncut = false\n\
                    [[link]]\nbetween = [\"east\", \"east\"]\ncut = true\n";
        let network = Network::parse(text).unwrap();
        let link = network.link("west", "east").unwrap();
        assert_eq!(link.latency, Duration::from_millis(17));
        assert_eq!(link.rto, Duration::from_millis(200));
        assert!(network.link("east", "east").unwrap().cut);
        assert!(network.link("west", "west").is_none());
        assert_eq!(Network::parse("").unwrap(), Network::default());
    }

    #[test]
    fn invalid_files_are_refused_with_a_reason() {
        let link = "[[link]]\nbetween = [\"a\", \"b\"]\n";
        for (text, reason) in [
            (format!("{link}latncy = \"1ms\""), "latncy"),
            ("sed = 1".to_owned(), "sed"),
            (format!("{link}loss = 1.5"), "probability"),
            (format!("{link}loss = nan"), "probability"),
            (format!("{link}latency = 17"), "duration"),
            (format!("{link}{link}"), "twice"),
            ("[[link]]\nbetween = [\"a\"]".to_owned(), "length"),
            ("[[link]]\nbetween = [\"a\", \"\"]".to_owned(), "name"),
            ("[[link]]\nlatency = \"1ms\"".to_owned(), "between"),
        ] {
            let error = Network::parse(&text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn written_file_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("network.toml");
        let mut network = Network::default();
        network.link_mut("0", "1").latency = Duration::from_millis(35);
        network.link_mut("1", "0").cut = true;
        network.link_mut("1", "1").loss = 0.5;
        assert_eq!(network.links.len(), 2);
        for _ in 0..2 {
            network.write(&file).unwrap();
            let text = std::fs::read_to_string(&file).unwrap();
            assert_eq!(Network::parse(&text).unwrap(), network);
        }
    }
}
