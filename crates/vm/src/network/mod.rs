//! The machine's network: frames from QEMU wait here until they may be heard, and leave by a tap device.
//!
//! ```text
//!   QEMU ── frames over a unix socket ──▶ Output ──▶ a tap device, in the host's bridge ──▶ clients
//!     ▲                                                                                        │
//!     └───────────────────────────── at once ◀─────────────────────────────────────────────────┘
//! ```
//!
//! Clients talk to the machine's own TCP: nothing between them has a state that could be lost. The survivor opens its own device in the
//! same network, and QEMU announces the machine's address there, as after a live migration.
//!
//! Invariant: a frame leaves by the device of a host that may run the machine, or not at all.

mod conversation;
mod output;
mod segment;
pub(crate) mod tap;

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Mutex, MutexGuard};

pub use output::{Flow, Frames, Output, Protection};

use crate::clock::since_boot;
use crate::core::Number;

/// Longer frames do not exist.
const FRAME_BYTES: usize = 1 << 16;
const LOOK_EVERY: u16 = 100;

/// Frames and connections.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// Frames that wait.
    pub waiting: usize,
    /// Connections that were reset after a takeover.
    pub resets: u64,
    /// Frames that were lost because too many waited.
    pub lost: u64,
}

/// The switch between the machine and the network.
pub struct Switch {
    path: PathBuf,
    port: u16,
    /// Counts devices, so that whoever reads from one notices that it was taken away.
    attached: AtomicU64,
    output: Mutex<Output>,
    /// Its own lock, after the output's.
    tap: Mutex<Option<File>>,
    machine: Mutex<Option<UnixStream>>,
    is_over: AtomicBool,
}

impl Switch {
    /// Listens for QEMU at a unix socket.
    ///
    /// # Errors
    /// If it cannot.
    pub fn listen(path: &Path, protection: Protection, port: u16) -> io::Result<Arc<Switch>> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        let switch = Arc::new(Switch {
            path: path.to_owned(),
            port,
            attached: AtomicU64::new(0),
            output: Mutex::new(Output::new(protection, port)),
            tap: Mutex::default(),
            machine: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let ours = switch.clone();
        std::thread::Builder::new()
            .name("frames out".to_owned())
            .spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    if ours.is_over() {
                        return;
                    }
                    if let Err(error) = ours.serve(stream) {
                        tracing::debug!(%error, "the machine left its network");
                    }
                }
            })?;
        Ok(switch)
    }

    /// The output, at this moment.
    fn output(&self) -> MutexGuard<'_, Output> {
        let mut output = self.output.lock();
        output.at(since_boot());
        output
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Ends it: nothing leaves any more.
    pub fn close(&self) {
        self.is_over.store(true, Ordering::Release);
        self.tap.lock().take();
        // Whoever accepts wakes up.
        let _ = UnixStream::connect(&self.path);
        let _ = std::fs::remove_file(&self.path);
    }

    fn serve(&self, stream: UnixStream) -> io::Result<()> {
        *self.machine.lock() = Some(stream.try_clone()?);
        let mut reader = BufReader::with_capacity(1 << 17, stream);
        loop {
            let mut len = [0; 4];
            reader.read_exact(&mut len)?;
            let len = u32::from_be_bytes(len) as usize;
            if len > FRAME_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let mut frame = vec![0; len];
            reader.read_exact(&mut frame)?;
            let mut output = self.output();
            if let Some(frame) = output.leaves(frame) {
                self.send(&[frame]);
            }
        }
    }

    /// Frames go to clients. One that the device does not take is lost, as on any network.
    fn send(&self, frames: &[Vec<u8>]) {
        let tap = self.tap.lock();
        let Some(mut tap) = tap.as_ref().filter(|_| !self.is_over()) else {
            return;
        };
        for frame in frames {
            if let Err(error) = tap.write(frame) {
                tracing::debug!(%error, "a frame was not sent");
            }
        }
    }

    /// Frames go to the machine.
    fn give(&self, frames: &[&[u8]]) {
        let mut machine = self.machine.lock();
        let Some(stream) = machine.as_mut() else {
            return;
        };
        for frame in frames {
            let packet = [&(frame.len() as u32).to_be_bytes()[..], frame].concat();
            if stream.write_all(&packet).is_err() {
                *machine = None;
                return;
            }
        }
    }

    /// The machine runs here: its frames leave by this device from now on, as far as they may.
    ///
    /// # Errors
    /// If a thread cannot be had.
    pub fn attach(self: &Arc<Switch>, tap: File) -> io::Result<()> {
        let reader = tap.try_clone()?;
        *self.tap.lock() = Some(tap);
        let (ours, number) = (
            self.clone(),
            self.attached.fetch_add(1, Ordering::AcqRel) + 1,
        );
        let receive = move || ours.receive(reader, number);
        std::thread::Builder::new()
            .name("frames in".to_owned())
            .spawn(receive)?;
        Ok(())
    }

    fn receive(&self, mut tap: File, number: u64) {
        let mut frame = vec![0; FRAME_BYTES];
        while !self.is_over() && self.attached.load(Ordering::Acquire) == number {
            let mut ready = [PollFd::new(tap.as_fd(), PollFlags::POLLIN)];
            let is_ready = poll(&mut ready, PollTimeout::from(LOOK_EVERY)).unwrap_or(0) > 0;
            // What goes to the machine waits while that stands still: not with the lock.
            let frames = self.settle();
            self.act(&frames);
            if !is_ready {
                continue;
            }
            let Ok(len) = tap.read(&mut frame) else {
                continue;
            };
            let frames = self.output().comes(&frame[..len]);
            self.give(&[&frame[..len]]);
            self.act(&frames);
        }
    }

    fn settle(&self) -> Frames {
        let mut output = self.output();
        match output.is_settling() {
            true => output.tick(),
            false => Frames::default(),
        }
    }

    fn act(&self, frames: &Frames) {
        self.send(&frames.out);
        let frames: Vec<&[u8]> = frames.to_machine.iter().map(Vec::as_slice).collect();
        self.give(&frames);
    }

    /// The machine does not run here any more: nothing leaves, and what waits is forgotten.
    pub fn detach(&self) {
        let mut output = self.output();
        *output = Output::new(output.wanted(), self.port);
        self.attached.fetch_add(1, Ordering::AcqRel);
        self.tap.lock().take();
    }

    /// Something else waits from the next checkpoint on.
    pub fn protect(&self, protection: Protection) {
        self.output().protect(protection);
    }

    /// From now on what leaves waits for checkpoints.
    pub fn hold(&self) {
        self.output().hold();
    }

    /// Nothing leaves any more until it is opened, but what waits for a checkpoint that is safe.
    pub fn hold_all(&self) {
        self.output().hold_all();
    }

    /// Checkpoints are counted anew.
    pub fn begin(&self) {
        self.output().begin();
    }

    /// A checkpoint is being made: the machine stands still.
    pub fn made(&self, number: Number) -> Vec<Flow> {
        self.output().made(number)
    }

    /// A checkpoint is safe. Until then, counted as the machine's clock counts from its start, no other host runs the machine.
    pub fn release(&self, number: Number, until: Duration) {
        let mut output = self.output();
        let frames = output.release(number, until);
        self.send(&frames);
    }

    /// Nothing waits any more.
    pub fn open(&self) {
        let mut output = self.output();
        let frames = output.open();
        self.send(&frames);
    }

    /// The machine is about to run on here, with these connections; the device is attached.
    pub fn take_over(&self, flows: Vec<Flow>) {
        let frames = self.output().take_over(flows);
        self.act(&frames);
    }

    /// What is to be told of it.
    pub fn counts(&self) -> Counts {
        let output = self.output();
        Counts {
            waiting: output.waiting(),
            resets: output.resets(),
            lost: output.lost(),
        }
    }
}
