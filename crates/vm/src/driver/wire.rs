//! Packets between hosts, and between operators and a host: a head, and the bytes of a checkpoint's part.
//!
//! ```text
//!   a host    ── Link ──▶ the other host      then packets both ways, and a sign of life now and then
//!   a command ── Ask ───▶ a host              ◀── Told, and the end
//! ```

use std::io;
use std::time::Duration;

use dax::tls::Tls;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::core::{Message, Session};
use crate::standby::CheckpointPart;

const HEAD_BYTES: usize = 1 << 20;
/// The bytes of one part.
const PART_BYTES: usize = 1 << 30;
/// TCP's connection, and the handshake of TLS.
const CONNECTS_WITHIN: Duration = Duration::from_secs(3);
/// A planned failover takes longest.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// What an operator asks a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// State of the host.
    Status,
    /// Let the standby take over.
    Failover,
    /// Read the configuration again.
    Reload,
    /// Who ran the machine when.
    History,
    /// What was counted, as Prometheus reads it.
    Metrics,
    /// Start the machine from this host's disk.
    StartFromDisk,
}

/// How hosts talk: raised when another version could not understand it, or could take it for something else.
pub const FORMAT: u32 = 3;

/// What a machine is: two hosts must agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// The [`FORMAT`] of the host. It comes first, whatever else changes.
    pub format: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Processors.
    pub cpus: u32,
    /// Bytes of the disk.
    pub disk: u64,
    /// The guest's kernel.
    pub kernel: String,
    /// What runs the guest's code.
    pub accelerator: String,
    /// The version of QEMU: another one may not load the devices of this one.
    pub qemu: String,
    /// How long the active host may be silent, in milliseconds: by it the one gives its standby up before the other one takes over.
    pub silence_ms: u64,
    /// The address of its network card.
    pub mac: String,
}

impl Shape {
    /// In what the machines differ, if the state of one cannot be loaded into the other.
    pub fn differs(&self, other: &Shape) -> Option<String> {
        let differ = |what: &str, ours: &dyn std::fmt::Display, theirs: &dyn std::fmt::Display| {
            Some(format!("its {what} is {theirs}, and {ours} here"))
        };
        if self.format != other.format {
            return differ("program's format", &self.format, &other.format);
        }
        if self.memory != other.memory {
            return differ("memory", &self.memory, &other.memory);
        }
        if self.disk != other.disk {
            return differ("disk's length", &self.disk, &other.disk);
        }
        if self.kernel != other.kernel {
            return differ("kernel", &self.kernel, &other.kernel);
        }
        if self.cpus != other.cpus {
            return differ("number of processors", &self.cpus, &other.cpus);
        }
        if self.accelerator != other.accelerator {
            return differ("accelerator", &self.accelerator, &other.accelerator);
        }
        if self.qemu != other.qemu {
            return differ("version of QEMU", &self.qemu, &other.qemu);
        }
        if self.silence_ms != other.silence_ms {
            return differ("silence, in ms,", &self.silence_ms, &other.silence_ms);
        }
        if self.mac != other.mac {
            return differ("network card's address", &self.mac, &other.mac);
        }
        None
    }
}

/// A packet.
#[derive(Debug, Serialize, Deserialize)]
pub enum Packet {
    /// The sender is the other host of this machine.
    Link(Shape),
    /// What hosts decide by.
    Message(Message),
    /// A part of a checkpoint; its bytes follow.
    Part(Session, CheckpointPart),
    /// An operator asks.
    Ask(Question),
    /// And is told.
    Told(Result<String, String>),
}

/// What can be both read and written.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection.
pub type Boxed = Box<dyn Stream>;

pub async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    packet: &Packet,
    bytes: &[u8],
) -> io::Result<()> {
    let head = postcard::to_allocvec(packet).map_err(io::Error::other)?;
    let mut out = Vec::with_capacity(8 + head.len());
    out.extend_from_slice(&(head.len() as u32).to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&head);
    stream.write_all(&out).await?;
    stream.write_all(bytes).await?;
    stream.flush().await
}

pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(Packet, Vec<u8>)> {
    let (head, len) = (
        stream.read_u32_le().await? as usize,
        stream.read_u32_le().await? as usize,
    );
    if head > HEAD_BYTES || len > PART_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; head];
    stream.read_exact(&mut bytes).await?;
    let packet = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await?;
    Ok((packet, bytes))
}

pub async fn connect(address: &str, tls: Option<&Tls>) -> io::Result<Boxed> {
    within(CONNECTS_WITHIN, async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(match tls {
            Some(tls) => {
                let stream = tls.connect(stream, address).await;
                Box::new(stream.map_err(io::Error::other)?) as Boxed
            }
            None => Box::new(stream),
        })
    })
    .await
}

/// Does something that has to be done in time.
pub async fn within<T>(
    limit: Duration,
    done: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    tokio::time::timeout(limit, done)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Asks a host something.
///
/// # Errors
/// If it cannot be reached.
pub async fn ask(
    address: &str,
    tls: Option<&Tls>,
    question: Question,
) -> io::Result<Result<String, String>> {
    let mut stream = connect(address, tls).await?;
    let told = within(ANSWERS_WITHIN, async {
        write(&mut stream, &Packet::Ask(question), &[]).await?;
        read(&mut stream).await
    });
    match told.await?.0 {
        Packet::Told(told) => Ok(told),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // hazard: VM-13, VM-27
    #[test]
    fn a_host_of_another_format_is_refused_before_anything_else_is_compared() {
        let ours = Shape {
            format: FORMAT,
            memory: 512 << 20,
            cpus: 1,
            disk: 1 << 30,
            kernel: "6.1".to_owned(),
            accelerator: "tcg".to_owned(),
            qemu: "7.2.1".to_owned(),
            silence_ms: 1_500,
            mac: "52:54:00:77:00:02".to_owned(),
        };
        assert_eq!(ours.differs(&ours.clone()), None);
        let theirs = Shape {
            format: FORMAT + 1,
            memory: 1 << 30,
            ..ours.clone()
        };
        let difference = ours.differs(&theirs).unwrap();
        assert!(difference.contains("format is 4, and 3"), "{difference}");
        let sent = postcard::to_allocvec(&theirs).unwrap();
        assert_eq!(u32::from(sent[0]), FORMAT + 1);
        let theirs = Shape {
            qemu: "8.0.0".to_owned(),
            ..ours.clone()
        };
        let difference = ours.differs(&theirs).unwrap();
        assert!(
            difference.contains("QEMU is 8.0.0, and 7.2.1"),
            "{difference}"
        );
    }
}
