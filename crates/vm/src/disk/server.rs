//! The network block device protocol, as QEMU speaks it over a unix socket.
//!
//! What there is: the fixed newstyle handshake, one export without a name, reads, writes, zeros and flushes, answered one after the other.
//! <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>

use std::io::{self, Read, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Contents, Disk, Write};

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const HAVE_OPTION: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_ABORT: u32 = 2;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_UNSUPPORTED: u32 = (1 << 31) + 1;

const HAS_FLAGS: u16 = 1;
const SENDS_FLUSH: u16 = 4;
const SENDS_FUA: u16 = 8;
const SENDS_ZEROES: u16 = 64;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const WRITE_ZEROES: u16 = 6;
const FUA: u16 = 1;
/// Longer requests are refused, as the protocol's document advises.
const REQUEST_BYTES: u32 = 32 << 20;

/// Listens until it is dropped; a connection that is open ends when QEMU closes it.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    is_over: Arc<AtomicBool>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // The thread wakes up.
        let stream = UnixStream::connect(&self.path);
        let _ = std::fs::remove_file(&self.path);
        drop(stream);
    }
}

/// Serves a disk at a unix socket, on threads of its own.
///
/// # Errors
/// If it cannot listen there.
pub fn serve(disk: Arc<Disk>, path: &Path) -> io::Result<Server> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let server = Server {
        path: path.to_owned(),
        is_over: is_over.clone(),
    };
    std::thread::Builder::new()
        .name("disk".to_owned())
        .spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if is_over.load(Ordering::Acquire) {
                    break;
                }
                let disk = disk.clone();
                let talk = move || {
                    if let Err(error) = Connection(stream).talk(&disk) {
                        tracing::debug!(%error, "the machine left its disk");
                    }
                };
                let spawned = std::thread::Builder::new()
                    .name("disk".to_owned())
                    .spawn(talk);
                if spawned.is_err() {
                    break;
                }
            }
        })?;
    Ok(server)
}

struct Connection(UnixStream);

struct Request {
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    len: u32,
}

impl Connection {
    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn number(&mut self) -> io::Result<u32> {
        Ok(u32::from_be_bytes(self.bytes()?))
    }

    fn talk(&mut self, disk: &Disk) -> io::Result<()> {
        if !self.greet(disk)? {
            return Ok(());
        }
        let mut buffer = Vec::new();
        loop {
            let request = self.request()?;
            if request.kind == DISCONNECT {
                return Ok(());
            }
            buffer.clear();
            if request.len > REQUEST_BYTES && request.kind != WRITE_ZEROES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let done = self.perform(disk, &request, &mut buffer);
            if let Err(error) = &done {
                let what = match request.kind {
                    READ => "read",
                    FLUSH => "flushed",
                    _ => "written",
                };
                disk.note(what, error);
            }
            let error = match done {
                Ok(()) => 0,
                // What was asked was read off the connection, or the connection is broken anyway.
                Err(error) => error.raw_os_error().unwrap_or(5) as u32,
            };
            let head = [
                &SIMPLE_REPLY_MAGIC.to_be_bytes()[..],
                &error.to_be_bytes(),
                &request.cookie.to_be_bytes(),
            ]
            .concat();
            self.0.write_all(&head)?;
            if request.kind == READ && error == 0 {
                self.0.write_all(&buffer)?;
            }
        }
    }

    fn greet(&mut self, disk: &Disk) -> io::Result<bool> {
        let flags = HAS_FLAGS | SENDS_FLUSH | SENDS_FUA | SENDS_ZEROES;
        let hello = [
            &MAGIC.to_be_bytes()[..],
            &HAVE_OPTION.to_be_bytes(),
            &[0, 3],
        ]
        .concat();
        self.0.write_all(&hello)?;
        let _client_flags = self.number()?;
        loop {
            let _magic: [u8; 8] = self.bytes()?;
            let (option, len) = (self.number()?, self.number()?);
            if len > 1 << 16 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.0.read_exact(&mut vec![0; len as usize])?;
            match option {
                OPTION_EXPORT_NAME => {
                    let mut answer =
                        [&disk.bytes().to_be_bytes()[..], &flags.to_be_bytes()].concat();
                    answer.extend([0; 124]);
                    self.0.write_all(&answer)?;
                    return Ok(true);
                }
                OPTION_INFO | OPTION_GO => {
                    let size = disk.bytes().to_be_bytes();
                    let info = [&[0, 0][..], &size, &flags.to_be_bytes()].concat();
                    self.reply(option, REPLY_INFO, &info)?;
                    self.reply(option, REPLY_ACK, &[])?;
                    if option == OPTION_GO {
                        return Ok(true);
                    }
                }
                OPTION_ABORT => {
                    self.reply(option, REPLY_ACK, &[])?;
                    return Ok(false);
                }
                _ => self.reply(option, REPLY_UNSUPPORTED, &[])?,
            }
        }
    }

    fn reply(&mut self, option: u32, kind: u32, payload: &[u8]) -> io::Result<()> {
        let reply = [
            &REPLY_MAGIC.to_be_bytes()[..],
            &option.to_be_bytes(),
            &kind.to_be_bytes(),
            &(payload.len() as u32).to_be_bytes(),
            payload,
        ];
        self.0.write_all(&reply.concat())
    }

    fn request(&mut self) -> io::Result<Request> {
        let head: [u8; 28] = self.bytes()?;
        let at = |from: usize| &head[from..];
        let short = |from| u16::from_be_bytes(*at(from).first_chunk().expect("28 bytes"));
        let long = |from| u64::from_be_bytes(*at(from).first_chunk().expect("28 bytes"));
        if head[..4] != REQUEST_MAGIC.to_be_bytes() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Request {
            flags: short(4),
            kind: short(6),
            cookie: long(8),
            offset: long(16),
            len: u32::from_be_bytes(*at(24).first_chunk().expect("28 bytes")),
        })
    }

    fn perform(&mut self, disk: &Disk, request: &Request, buffer: &mut Vec<u8>) -> io::Result<()> {
        let Request { offset, len, .. } = *request;
        if request.kind == WRITE {
            buffer.resize(len as usize, 0);
            self.0.read_exact(buffer)?;
        }
        let is_outside = offset
            .checked_add(u64::from(len))
            .is_none_or(|end| end > disk.bytes());
        if is_outside && request.kind != FLUSH {
            return Err(io::Error::from_raw_os_error(28));
        }
        match request.kind {
            READ => {
                buffer.resize(len as usize, 0);
                return disk.read(offset, buffer);
            }
            WRITE => {
                let contents = Contents::Bytes(std::mem::take(buffer));
                disk.write(Write { offset, contents })?;
            }
            WRITE_ZEROES => {
                let contents = Contents::Zeros(len);
                disk.write(Write { offset, contents })?;
            }
            FLUSH => return disk.flush().map(drop),
            _ => return Err(io::Error::from_raw_os_error(22)),
        }
        match request.flags & FUA {
            0 => Ok(()),
            _ => disk.flush().map(drop),
        }
    }
}
