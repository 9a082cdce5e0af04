//! A line between two processes that can be cut: whoever is at its ends gets no sign of it.
//!
//! Invariant: while it is cut nothing arrives, in neither direction; what was said meanwhile arrives late, as a network's last packets do.

use std::io;
use std::net::Ipv4Addr;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// See the module. Dropping it breaks its connections.
#[derive(Debug)]
pub(super) struct Line {
    port: u16,
    is_cut: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Line {
    /// Opens one to an address.
    pub(super) async fn open(to: String) -> anyhow::Result<Line> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.context("cannot listen for a line between processes")?;
        let port = listener.local_addr()?.port();
        let (is_cut, seen) = watch::channel(false);
        let task = tokio::spawn(async move {
            // Its connections end with it.
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(join(near, to.clone(), seen.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Line { port, is_cut, task })
    }

    /// Where this end is.
    pub(super) fn address(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.port)
    }

    /// Cuts it, or mends it.
    pub(super) fn cut(&self, is_cut: bool) {
        self.is_cut.send_replace(is_cut);
    }
}

/// Carries what is said on one connection until either end closes it.
async fn join(near: TcpStream, to: String, mut is_cut: watch::Receiver<bool>) {
    if is_cut.wait_for(|cut| !cut).await.is_err() {
        return;
    }
    // An end that cannot be reached is one that closes.
    let Ok(far) = TcpStream::connect(&to).await else {
        return;
    };
    let at_once = near.set_nodelay(true).and_then(|()| far.set_nodelay(true));
    if at_once.is_err() {
        return;
    }
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let there = carry(near_in, far_out, is_cut.clone());
    let back = carry(far_in, near_out, is_cut);
    // Whichever end breaks, both are closed.
    let _ = tokio::try_join!(there, back);
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut is_cut: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = from.read(&mut buffer).await?;
        if is_cut.wait_for(|cut| !cut).await.is_err() {
            return Ok(());
        }
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_sent_while_a_line_is_cut_arrive_when_it_is_mended() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let line = Line::open(listener.local_addr().unwrap().to_string())
            .await
            .unwrap();
        let mut near = TcpStream::connect(line.address()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        let mut heard = [0; 3];
        near.write_all(b"one").await.unwrap();
        far.read_exact(&mut heard).await.unwrap();
        line.cut(true);
        near.write_all(b"two").await.unwrap();
        let waited = std::time::Duration::from_millis(200);
        let early = tokio::time::timeout(waited, far.read_exact(&mut heard)).await;
        assert!(early.is_err(), "it was cut");
        line.cut(false);
        far.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"two");
        drop(near);
        assert_eq!(far.read(&mut heard).await.unwrap(), 0);
    }
}
