//! The one place where errors become an exit code and what is printed, as PostgreSQL's programs print it.
//!
//! ```text
//! understudy: error: what happened
//! understudy: detail: what caused it, down to what the system said
//! understudy: hint: What can be done about it.
//! ```
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | failed, or a check did not hold |
//! | 2 | the command line or the configuration is wrong |
//! | 3 | not available now: too few zones, no agent, or something to install is missing |
//! | 4 | refused: it exists already, or another node owns a newer epoch |
//! | 130 | interrupted |

use std::fmt;
use std::process::ExitCode;

use coordination::channel::ChannelError;
use coordination::config::ConfigError;
use coordination::records::RecordError;
#[cfg(feature = "engine")]
use engine::EngineError;
use node::agent::AgentError;
use operations::rest::RestError;

/// What the process ends with. See the module for when which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// Done.
    Ok = 0,
    /// Failed, or a check did not hold.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// Not available now.
    Unavailable = 3,
    /// Refused.
    Refused = 4,
    /// Interrupted by the user.
    Interrupted = 130,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> ExitCode {
        ExitCode::from(code as u8)
    }
}

/// An error that knows its exit code and what can be done about it.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    message: String,
    hint: Option<String>,
}

impl Failure {
    /// A failure without a hint; `message` is one sentence without a full stop.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure {
            code,
            message: message.into(),
            hint: None,
        }
    }

    /// The exit code.
    #[cfg(all(test, feature = "mirror"))]
    pub fn code(&self) -> Code {
        self.code
    }

    /// The same, with a hint: a whole sentence.
    #[must_use]
    pub fn advise(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// The refusal of what needs a product that this program was built without, which is cargo's feature of this name.
pub fn not_built(feature: &str) -> Failure {
    let message = format!("this program was built without the feature \"{feature}\"");
    Failure::new(Code::Unavailable, message).advise(format!(
        "Install the package, which has it, or in the sources: cargo build --release -p understudy --features {feature}"
    ))
}

/// Ends the process: prints what went wrong to standard error, and gives the exit code.
pub fn report(result: anyhow::Result<Code>) -> ExitCode {
    match result {
        Ok(code) => code.into(),
        Err(error) => {
            let (code, hint) = judge(&error);
            eprint!("{}", lines(&error, hint.as_deref()));
            code.into()
        }
    }
}

/// What happened, the chain of its causes without saying the same twice, and a hint.
fn lines(error: &anyhow::Error, hint: Option<&str>) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if !said.iter().any(|earlier| earlier.contains(&text)) {
            said.push(text);
        }
    }
    let mut lines = String::new();
    let causes = said.split_off(1).join(": ");
    let parts = [("error", said.concat()), ("detail", causes)];
    let hint = ("hint", hint.unwrap_or_default().to_owned());
    for (part, text) in parts.into_iter().chain([hint]) {
        if !text.is_empty() {
            lines += &format!("understudy: {part}: {text}\n");
        }
    }
    lines
}

fn judge(error: &anyhow::Error) -> (Code, Option<String>) {
    error
        .chain()
        .find_map(of_cause)
        .unwrap_or((Code::Failed, None))
}

/// What one error of the chain says by its type.
fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<(Code, Option<String>)> {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return Some((failure.code, failure.hint.clone()));
    }
    if let Some(error) = cause.downcast_ref::<dax::error::Error>() {
        return Some(of_storage(error));
    }
    if let Some(error) = cause.downcast_ref::<RecordError>() {
        return of_record(error);
    }
    if let Some(error) = cause.downcast_ref::<AgentError>() {
        return of_agent(error);
    }
    #[cfg(feature = "engine")]
    if let Some(error) = cause.downcast_ref::<EngineError>() {
        return of_engine(error);
    }
    if let Some(error) = cause.downcast_ref::<ConfigError>() {
        return Some((Code::Usage, error.hint().map(str::to_owned)));
    }
    if let Some(error) = cause.downcast_ref::<RestError>() {
        let code = match error {
            RestError::Certificate(error) => return Some(of_storage(error)),
            RestError::Refused(_) => Code::Usage,
            _ => Code::Failed,
        };
        return Some((code, None));
    }
    if let Some(error) = cause.downcast_ref::<ChannelError>() {
        return Some(of_channel(error));
    }
    if let Some(error) = cause.downcast_ref::<store::OpenError>() {
        let code = match error {
            store::OpenError::Locked { .. } | store::OpenError::AddressInUse { .. } => {
                Code::Refused
            }
            store::OpenError::Address { .. } | store::OpenError::Unprotected { .. } => Code::Usage,
            _ => Code::Failed,
        };
        return Some((code, None));
    }
    None
}

fn of_record(error: &RecordError) -> Option<(Code, Option<String>)> {
    match error {
        RecordError::Storage(error) => Some(of_storage(error)),
        _ => None,
    }
}

fn of_agent(error: &AgentError) -> Option<(Code, Option<String>)> {
    let hint = error.hint();
    match error {
        AgentError::Storage(error) => Some(of_storage(error)),
        AgentError::Record(error) => of_record(error),
        AgentError::Channel(error) => Some(of_channel(error)),
        AgentError::NotInitialised(_) => Some((Code::Usage, hint)),
        AgentError::Initialised(_) => Some((Code::Refused, hint)),
        AgentError::Postgres(_) | AgentError::Mount(_) => Some((Code::Failed, hint)),
        AgentError::Version(_) | AgentError::Refused(_) => Some((Code::Usage, None)),
        _ => None,
    }
}

#[cfg(feature = "engine")]
fn of_engine(error: &EngineError) -> Option<(Code, Option<String>)> {
    match error {
        EngineError::Storage(error) => Some(of_storage(error)),
        EngineError::Record(error) => of_record(error),
        EngineError::Channel(error) => Some(of_channel(error)),
        EngineError::Config(_) => Some((Code::Usage, error.hint())),
        _ => error.hint().map(|hint| (Code::Failed, Some(hint))),
    }
}

fn of_channel(error: &ChannelError) -> (Code, Option<String>) {
    match error {
        ChannelError::Refused { .. } | ChannelError::Timeout { .. } => (
            Code::Unavailable,
            Some("Check that the node is running (understudy status).".to_owned()),
        ),
        ChannelError::Refusal { .. } | ChannelError::Rejected { .. } => (Code::Refused, None),
        ChannelError::Unprotected(error) => of_storage(error),
        _ => (Code::Failed, None),
    }
}

/// What the storage tier's kind of error means to a person.
fn of_storage(error: &dax::error::Error) -> (Code, Option<String>) {
    use dax::error::ErrorKind;
    let (code, hint) = match error.kind() {
        ErrorKind::Unavailable => (
            Code::Unavailable,
            "Start the zones (understudy store), and compare their addresses with \"zones\" in \
             the configuration.",
        ),
        ErrorKind::Fenced => (
            Code::Refused,
            "Another node has taken over since; see: understudy status.",
        ),
        ErrorKind::Conflict => (Code::Refused, "See what is there: understudy status."),
        ErrorKind::NotFound => (
            Code::Usage,
            "Check \"volume\" in the configuration, or create it: understudy init.",
        ),
        ErrorKind::Denied => (
            Code::Usage,
            "Compare [tls], \"key\" and \"volume\" in the configuration with the zones' --identity and \
             --secret-file; understudy key makes a volume's key.",
        ),
        ErrorKind::Invalid => return (Code::Usage, None),
        ErrorKind::Full => (Code::Unavailable, "Make room on the zone's disk."),
        ErrorKind::Protocol => (
            Code::Failed,
            "Check the addresses, and that both sides have the same version.",
        ),
        _ => return (Code::Failed, None),
    };
    (code, Some(hint.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn the_cause_decides_the_code_and_the_hint() {
        let failure = Failure::new(Code::Unavailable, "no zone answers").advise("Start one.");
        let error = Err::<(), _>(failure)
            .context("cannot read the status")
            .unwrap_err();
        assert_eq!(
            judge(&error),
            (Code::Unavailable, Some("Start one.".into()))
        );
        assert_eq!(
            lines(&error, Some("Start one.")),
            "understudy: error: cannot read the status\n\
             understudy: detail: no zone answers\n\
             understudy: hint: Start one.\n"
        );
    }

    #[test]
    fn an_error_that_nobody_knows_is_a_failure() {
        assert_eq!(judge(&anyhow::anyhow!("broken")), (Code::Failed, None));
    }

    #[test]
    fn a_cause_that_repeats_its_effect_is_said_once() {
        let error = anyhow::anyhow!("disk full").context("cannot write: disk full");
        let said = "understudy: error: cannot write: disk full\n";
        assert_eq!(lines(&error, None), said);
    }
}
