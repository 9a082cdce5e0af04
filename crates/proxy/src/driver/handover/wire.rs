//! Messages between two processes, and the descriptors that go with them.
//!
//! A message is its kind, the length of its body, and the body. Descriptors come with the first bytes.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use zeroize::Zeroizing;

/// Kind and length.
const HEADER_BYTES: usize = 5;
/// No session is as large.
const BODY_BYTES: usize = 256 << 20;
/// With one message.
const DESCRIPTORS: usize = 2;

/// What was received.
pub struct Received {
    pub kind: u8,
    /// Sessions hold what proves passwords.
    pub body: Zeroizing<Vec<u8>>,
    /// Descriptors.
    pub descriptors: Vec<OwnedFd>,
}

/// The connection between two processes.
pub struct Wire(pub UnixStream);

impl Wire {
    /// Receives from now on, and passes on that there is no more.
    pub fn listen(wire: Arc<Wire>) -> mpsc::UnboundedReceiver<Option<Received>> {
        let (to, from) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let received = wire.receive().await.ok().flatten();
                let is_end = received.is_none();
                if to.send(received).is_err() || is_end {
                    return;
                }
            }
        });
        from
    }

    /// Sends a message. Only one task sends.
    pub async fn send(
        &self,
        kind: u8,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let len = u32::try_from(body.len()).map_err(io::Error::other)?;
        let mut header = [0; HEADER_BYTES];
        header[0] = kind;
        header[1..].copy_from_slice(&len.to_be_bytes());
        let mut sent = self
            .0
            .async_io(Interest::WRITABLE, || {
                let mut space =
                    [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if !descriptors.is_empty()
                    && !control.push(SendAncillaryMessage::ScmRights(descriptors))
                {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                let pieces = [IoSlice::new(&header), IoSlice::new(body)];
                Ok(sendmsg(
                    &self.0,
                    &pieces,
                    &mut control,
                    SendFlags::NOSIGNAL,
                )?)
            })
            .await?;
        while sent < HEADER_BYTES + body.len() {
            let rest = match sent.checked_sub(HEADER_BYTES) {
                None => [IoSlice::new(&header[sent..]), IoSlice::new(body)],
                Some(of_body) => [IoSlice::new(&body[of_body..]), IoSlice::new(&[])],
            };
            self.0.writable().await?;
            match self.0.try_write_vectored(&rest) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next message; `None` at the end. Only one task receives, and waits for all of it.
    pub async fn receive(&self) -> io::Result<Option<Received>> {
        let mut header = [0; HEADER_BYTES];
        let mut descriptors = Vec::new();
        let mut have = 0;
        while have < HEADER_BYTES {
            let read = self.read(&mut header[have..], &mut descriptors).await?;
            if read == 0 {
                return match have {
                    0 => Ok(None),
                    _ => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
            have += read;
        }
        let len = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        if len > BODY_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = Zeroizing::new(vec![0; len]);
        let mut have = 0;
        while have < len {
            match self.read(&mut body[have..], &mut descriptors).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => have += read,
            }
        }
        Ok(Some(Received {
            kind: header[0],
            body,
            descriptors,
        }))
    }

    async fn read(&self, to: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
        self.0
            .async_io(Interest::READABLE, || {
                let mut space =
                    [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut pieces = [IoSliceMut::new(to)];
                let flags = RecvFlags::CMSG_CLOEXEC;
                let read = recvmsg(&self.0, &mut pieces, &mut control, flags)?.bytes;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = message {
                        descriptors.extend(received);
                    }
                }
                Ok(read)
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[tokio::test]
    async fn messages_arrive_whole_and_with_their_descriptors() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let (one, other) = (Arc::new(Wire(one)), Wire(other));
        let (mut inside, outside) = std::io::pipe().expect("a pipe");
        let long = vec![7; 3 << 20];
        let sending = one.clone();
        let expected = long.clone();
        let sent = tokio::spawn(async move {
            sending.send(1, b"a", &[]).await.expect("sent");
            sending
                .send(2, &long, &[outside.as_fd()])
                .await
                .expect("sent");
            sending.send(3, b"", &[]).await.expect("sent");
        });
        let first = other.receive().await.expect("received").expect("one");
        assert_eq!((first.kind, first.body.as_slice()), (1, b"a".as_slice()));
        assert!(first.descriptors.is_empty());
        let mut second = other.receive().await.expect("received").expect("another");
        assert_eq!((second.kind, second.body.len()), (2, expected.len()));
        let given = second.descriptors.pop().expect("the pipe");
        std::io::PipeWriter::from(given)
            .write_all(b"x")
            .expect("written");
        assert_eq!(
            other.receive().await.expect("received").expect("it").kind,
            3
        );
        sent.await.expect("all sent");
        drop(one);
        assert!(other.receive().await.expect("the end").is_none());
        let mut read = Vec::new();
        inside.read_to_end(&mut read).expect("read");
        assert_eq!(read, b"x");
    }
}
