//! A machine on this host: one that was booted, or one that waits for the state of a machine elsewhere.
//!
//! ```text
//!   start(Boot) ───────────────▶ runs ◀──resume── paused
//!                                  └────pause───────▲
//!   start(Incoming) ─▶ waits ──load──────────────────┘
//! ```
//!
//! A waiting machine has a process, devices and memory, and executes nothing. Its memory is a copy that others write.
//! Invariant: from `load` on, nobody but QEMU writes to the memory.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::guest::{Guest, Run};
use super::memory::Memory;
use super::process::{self, Process};
use super::qmp::{Qmp, QmpError, Ready};
use super::spec::Spec;
use super::tracking::{Mapping, Tracking};
use super::{HostError, Result, requirements};

/// How long QEMU may take to start.
const STARTS_WITHIN: Duration = Duration::from_secs(20);
/// How long it may take for a command. They take milliseconds, if the disk answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How long it may take to load the state of devices.
const LOADS_WITHIN: Duration = Duration::from_secs(20);
/// Between two looks at something that takes milliseconds.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What a machine begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// It boots, and runs.
    Boot,
    /// It waits for the state of one that runs elsewhere.
    Incoming,
}

/// See the module. Dropping it kills it.
#[derive(Debug)]
pub struct Machine {
    // Dropped in this order: nobody maps the memory when its file is removed.
    process: Process,
    qmp: Qmp,
    stop: Ready,
    save: Ready,
    go_on: Ready,
    tracking: Tracking,
    memory: Memory,
    devices: PathBuf,
    incoming: PathBuf,
    version: String,
    _directory: MemoryDirectory,
}

/// Removed with the machine.
#[derive(Debug)]
struct MemoryDirectory(PathBuf);

impl Drop for MemoryDirectory {
    fn drop(&mut self) {
        // What stays is removed when the machine is started again.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Machine {
    /// Starts one. What is left of an earlier one in the same directories is killed and removed. See
    /// [`check`](super::check) for what the host must have.
    ///
    /// # Errors
    /// `Unfit`, `Ended`, `Slow`; see [`HostError`].
    pub fn start(spec: &Spec, start: Start) -> Result<Machine> {
        process::prepare(spec)?;
        let directory = MemoryDirectory(spec.memory_dir.clone());
        let memory = Memory::create(&spec.memory_file(), spec.memory)?;
        process::give(spec, memory.path())?;
        let process = Process::start(spec, start == Start::Incoming)?;
        let mut qmp = connect(&process, spec)?;
        let ready = |number, command, arguments| {
            let path = spec.qmp_socket(number);
            told(
                &process,
                Ready::connect(&path, command, arguments, ANSWERS_WITHIN),
            )
        };
        let stop = ready(1, "stop", Value::Null)?;
        // Named for another hypervisor, it is the one command that saves devices without memory. `live` false: QEMU
        // keeps the disk.
        let file = spec.devices_file().display().to_string();
        let arguments = json!({"filename": file, "live": false});
        let save = ready(2, "xen-save-devices-state", arguments)?;
        let go_on = ready(3, "cont", Value::Null)?;
        // QEMU answers when everything is made.
        let about = told(
            &process,
            qmp.run("query-version", Value::Null, STARTS_WITHIN),
        )?;
        let mapping = mapping(spec)?;
        Ok(Machine {
            tracking: Tracking::open(process.pid(), mapping)?,
            process,
            qmp,
            stop,
            save,
            go_on,
            memory,
            devices: spec.devices_file(),
            incoming: spec.incoming_socket(),
            version: version(&about),
            _directory: directory,
        })
    }

    /// The process id of QEMU.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// QEMU's version, and the package that it is of.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// QEMU's version; that of both hosts must be the same.
    pub fn number(&self) -> &str {
        self.version.split(' ').next().unwrap_or_default()
    }

    /// Its memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Why it ended, if it did.
    pub fn ended(&self) -> Option<HostError> {
        self.process.ended()
    }

    /// True if the guest's processors run.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.status()? == "running")
    }

    /// Makes a waiting machine what the other one was when `devices` was saved; it is paused then. Its memory must be
    /// complete.
    ///
    /// # Errors
    /// `Ended` if QEMU cannot load it; the machine is lost.
    pub fn load(&mut self, devices: &[u8]) -> Result<()> {
        let uri = format!("unix:{}", self.incoming.display());
        self.tell("migrate-incoming", json!({"uri": uri}))?;
        self.send(devices)?;
        let deadline = Instant::now() + LOADS_WITHIN;
        while self.status()? == "inmigrate" {
            if Instant::now() > deadline {
                return Err(HostError::Slow {
                    what: "load the state of its devices",
                    after: LOADS_WITHIN,
                });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn send(&self, devices: &[u8]) -> Result<()> {
        let sent = UnixStream::connect(&self.incoming).and_then(|mut stream| {
            stream.set_write_timeout(Some(LOADS_WITHIN))?;
            stream.write_all(devices)?;
            stream.shutdown(std::net::Shutdown::Write)
        });
        // Why QEMU ended says more than that it did.
        sent.map_err(|error| {
            self.why_gone(HostError::system(
                "cannot hand the state of the devices to QEMU",
                error,
            ))
        })
    }

    /// Presses the power button. A guest that listens stops cleanly then.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn press_power(&mut self) -> Result<()> {
        self.tell("system_powerdown", Value::Null).map(drop)
    }

    /// Waits until the guest has powered off by itself; whether it did.
    ///
    /// # Errors
    /// Only if a process hangs in the kernel.
    pub fn powered_off(&mut self, within: Duration) -> Result<bool> {
        let deadline = Instant::now() + within;
        while self.ended().is_none() {
            if Instant::now() > deadline {
                return Ok(false);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.process.cleaned()?;
        Ok(true)
    }

    /// Ends it at once; returns when nothing is left of it.
    ///
    /// # Errors
    /// Only if a process hangs in the kernel.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    fn status(&mut self) -> Result<String> {
        let answer = self.tell("query-status", Value::Null)?;
        Ok(answer["status"].as_str().unwrap_or_default().to_owned())
    }

    fn tell(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let answer = self.qmp.run(command, arguments, ANSWERS_WITHIN);
        told(&self.process, answer)
    }

    fn why_gone(&self, error: HostError) -> HostError {
        why_gone(&self.process, error)
    }
}

impl Guest for Machine {
    fn pages(&self) -> u64 {
        self.memory.pages()
    }

    fn pause(&mut self) -> Result<()> {
        told(&self.process, self.stop.end()).map(drop)
    }

    fn resume(&mut self) -> Result<()> {
        told(&self.process, self.go_on.end()).map(drop)
    }

    fn written(&mut self, into: &mut Vec<Run>) -> Result<()> {
        self.tracking
            .written(into)
            .map_err(|error| why_gone(&self.process, error))
    }

    fn populated(&self, into: &mut Vec<Run>) -> Result<()> {
        self.memory.populated(into)
    }

    fn read(&self, run: Run, into: &mut Vec<u8>) -> Result<()> {
        self.memory.read(run, into)
    }

    fn begin_devices(&mut self) -> Result<()> {
        told(&self.process, self.save.begin())
    }

    fn devices(&mut self, into: &mut Vec<u8>) -> Result<()> {
        told(&self.process, self.save.end())?;
        let saved = std::fs::File::open(&self.devices);
        let read = saved.and_then(|mut file| io::Read::read_to_end(&mut file, into));
        read.map_err(|e| HostError::system("cannot read the state of the devices", e))?;
        Ok(())
    }

    fn prepare(&mut self) -> Result<()> {
        for ready in [&mut self.stop, &mut self.save, &mut self.go_on] {
            told(&self.process, ready.prepare())?;
        }
        // QEMU tells everybody that it stops and goes on.
        told(&self.process, self.qmp.listen())
    }
}

fn connect(process: &Process, spec: &Spec) -> Result<Qmp> {
    let deadline = Instant::now() + STARTS_WITHIN;
    loop {
        match Qmp::connect(&spec.qmp_socket(0), STARTS_WITHIN) {
            Ok(qmp) => return Ok(qmp),
            // It does not listen yet.
            Err(QmpError::System(_)) if process.ended().is_none() => {}
            Err(error) => return Err(why_gone(process, error.into())),
        }
        if Instant::now() > deadline {
            return Err(HostError::Slow {
                what: "begin to listen for commands",
                after: STARTS_WITHIN,
            });
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Where QEMU has mapped the memory.
fn mapping(spec: &Spec) -> Result<Mapping> {
    let silent = || {
        let what = format!(
            "{} did not load the library that tracks what it writes",
            spec.qemu.display()
        );
        HostError::unfit(
            what,
            "Use the QEMU of the distribution, linked dynamically.",
        )
    };
    let mapping = Mapping::noted(&spec.note_file())?.ok_or_else(silent)?;
    if mapping.end - mapping.start != spec.memory {
        let what = "QEMU has not mapped the machine's memory as a whole";
        return Err(HostError::unfit(what, "Give the machine less memory."));
    }
    requirements::check_swap(mapping.locked)?;
    Ok(mapping)
}

fn version(about: &Value) -> String {
    let part = |name: &str| about["qemu"][name].as_u64().unwrap_or_default();
    let package = about["package"].as_str().unwrap_or_default();
    let number = format!("{}.{}.{}", part("major"), part("minor"), part("micro"));
    format!("{number} {package}").trim().to_owned()
}

fn told<T>(process: &Process, answer: Result<T, QmpError>) -> Result<T> {
    answer.map_err(|error| why_gone(process, error.into()))
}

/// If QEMU has ended, that is the error.
fn why_gone(process: &Process, error: HostError) -> HostError {
    let gone = matches!(
        error,
        HostError::Qmp(QmpError::Closed) | HostError::System { .. } | HostError::Ended { .. }
    );
    if !gone {
        return error;
    }
    // The connection is closed a moment before the process has ended.
    let deadline = Instant::now() + Duration::from_millis(500);
    while Instant::now() < deadline {
        if let Some(ended) = process.ended() {
            return ended;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    error
}
