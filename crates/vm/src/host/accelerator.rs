//! What runs the guest's code: the processor's virtualization (KVM), or QEMU's translation (TCG).
//!
//! That `/dev/kvm` exists says little: under another hypervisor a guest's kernel may never get beyond its first
//! instructions. So a kernel is booted with it, which takes a second where it works. What was found is remembered until
//! the host is booted again.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::process::{Child, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{HostError, Result};

/// How long a kernel may take to start with KVM. It takes about a second.
const BOOTS_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What runs the guest's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor, by the kernel's virtual machines.
    Kvm,
    /// QEMU, which translates it: tens of times slower.
    Tcg,
}

impl Accelerator {
    /// The processor that the guest sees.
    pub(super) fn processor(self) -> &'static str {
        match self {
            Accelerator::Kvm => "host",
            Accelerator::Tcg => "max",
        }
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        })
    }
}

impl FromStr for Accelerator {
    type Err = String;

    fn from_str(text: &str) -> Result<Accelerator, String> {
        match text {
            "kvm" => Ok(Accelerator::Kvm),
            "tcg" => Ok(Accelerator::Tcg),
            _ => Err(format!("{text:?} is neither kvm nor tcg")),
        }
    }
}

/// What was chosen, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceleration {
    /// What was chosen.
    pub accelerator: Accelerator,
    /// Why, for people.
    pub reason: String,
}

/// Finds what this host can do with an image's kernel. `remembered` is a file for what was found.
///
/// # Errors
/// `System`; that KVM does not work is none.
pub fn choose(
    qemu: &Path,
    kernel: &Path,
    initrd: &Path,
    remembered: &Path,
) -> Result<Acceleration> {
    let host = host_and_program(qemu);
    if let Some(known) = recall(remembered, &host) {
        return Ok(known);
    }
    let found = match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Err(error) => Acceleration {
            accelerator: Accelerator::Tcg,
            reason: format!("/dev/kvm: {error}"),
        },
        Ok(_) => probe(qemu, kernel, initrd)?,
    };
    let text = format!("{host}\n{}\n{}\n", found.accelerator, found.reason);
    if let Err(error) = std::fs::write(remembered, text) {
        tracing::warn!(%error, "cannot remember that this host runs machines with {}", found.accelerator);
    }
    Ok(found)
}

/// Changes when the host was booted again, or QEMU was replaced.
fn host_and_program(qemu: &Path) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let installed = std::fs::metadata(qemu).and_then(|about| about.modified());
    let since = installed
        .ok()
        .and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let seconds = since.map_or(0, |since| since.as_secs());
    format!("{} {} {seconds}", boot.trim(), qemu.display())
}

fn recall(remembered: &Path, host: &str) -> Option<Acceleration> {
    let text = std::fs::read_to_string(remembered).ok()?;
    let mut lines = text.lines();
    if lines.next()? != host {
        return None;
    }
    Some(Acceleration {
        accelerator: lines.next()?.parse().ok()?,
        reason: lines.next()?.to_owned(),
    })
}

/// Boots the kernel with KVM, as far as the first program.
fn probe(qemu: &Path, kernel: &Path, initrd: &Path) -> Result<Acceleration> {
    let failed = |e| HostError::system("cannot try the processor's virtualization", e);
    let directory = tempfile::tempdir().map_err(failed)?;
    let console = directory.path().join("console");
    let mut child = Tried(start(qemu, kernel, initrd, &console).map_err(failed)?);
    let began = Instant::now();
    let (accelerator, reason) = loop {
        let ended = child.0.try_wait().map_err(failed)?;
        let said = std::fs::read(&console).unwrap_or_default();
        if contains(&said, crate::image::STARTED.as_bytes()) {
            let reason = format!("a kernel started with KVM in {:?}", began.elapsed());
            break (Accelerator::Kvm, reason);
        }
        if let Some(status) = ended {
            break (Accelerator::Tcg, format!("with KVM, QEMU ends: {status}"));
        }
        if began.elapsed() > BOOTS_WITHIN {
            let reason = format!(
                "/dev/kvm is there, but a kernel does not start with it within {BOOTS_WITHIN:?}"
            );
            break (Accelerator::Tcg, reason);
        }
        std::thread::sleep(LOOK_EVERY);
    };
    Ok(Acceleration {
        accelerator,
        reason,
    })
}

/// Does not outlive this.
struct Tried(Child);

impl Drop for Tried {
    fn drop(&mut self) {
        // It may have ended; either way it is gone then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(qemu: &Path, kernel: &Path, initrd: &Path, console: &Path) -> io::Result<Child> {
    let processor = Accelerator::Kvm.processor();
    let mut command = supervise::spawn::command(qemu, "QEMU_");
    command
        .args([
            "-machine",
            "pc,accel=kvm",
            "-cpu",
            processor,
            "-m",
            "256M",
            "-nodefaults",
        ])
        .args([
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-append",
        ])
        .arg(format!(
            "console=ttyS0 quiet panic=-1 {}",
            crate::image::ONLY_START
        ))
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initrd)
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(console.with_extension("errors"))?);
    supervise::spawn::prepare(&mut command, None, Some(Signal::SIGKILL));
    command.spawn()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accelerator_is_remembered_for_this_boot_and_program() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("acceleration");
        let qemu = Path::new("/usr/bin/true");
        let host = host_and_program(qemu);
        assert_eq!(recall(&file, &host), None);
        std::fs::write(&file, format!("{host}\ntcg\nbecause\n")).unwrap();
        let known = recall(&file, &host).unwrap();
        assert_eq!(
            (known.accelerator, known.reason.as_str()),
            (Accelerator::Tcg, "because")
        );
        let chosen = choose(qemu, Path::new("/no"), Path::new("/no"), &file).unwrap();
        assert_eq!(chosen, known);
        assert_eq!(recall(&file, "another boot"), None);
        for damaged in [
            "",
            "x",
            &host,
            &format!("{host}\nhax\nx\n"),
            &format!("{host}\nkvm\n"),
        ] {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(recall(&file, &host), None, "{damaged:?}");
        }
    }

    #[test]
    fn a_program_that_ends_is_no_accelerator() {
        // Whatever /dev/kvm is here, this is no QEMU.
        let tried = probe(Path::new("/bin/false"), Path::new("/no"), Path::new("/no")).unwrap();
        assert_eq!(tried.accelerator, Accelerator::Tcg);
        assert!(tried.reason.contains("ends"), "{}", tried.reason);
    }
}
