//! A session of the other manager's client, which goes on here.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use protocol::frame;
use proxy::driver::socket::Socket;

use super::super::hub::Hub;
use super::super::wire::Wire;
use super::login::{Door, log_in, not_ready};
use super::startup::{Entered, check, reach};
use super::{End, Result, Session};
use crate::core::moving::Belongings;

/// How long a visitor waits for this manager to become primary.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long letting it in may take.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Receives a session, and serves it.
pub async fn visit(hub: Arc<Hub>, socket: Socket, belongings: Belongings) {
    let mut client = Wire::new(socket);
    let mut serving = hub.serving();
    // If not, it is told so.
    let _ = tokio::time::timeout(PATIENCE, serving.wait_for(Option::is_some)).await;
    let entering = enter(&hub, &mut client, &belongings);
    let (entered, mut welcome) = match tokio::time::timeout(LOGIN_TIMEOUT, entering).await {
        Ok(Ok(entered)) => entered,
        Ok(Err(end)) => return client.say_why(not_let_in(end)).await,
        Err(_) => return,
    };
    let key = entered.key;
    let mut session = Session::new(hub.clone(), client, entered.session);
    hub.counters.clients.fetch_add(1, Ordering::Relaxed);
    match session.unpack(&belongings).await {
        Ok(reported) => {
            welcome.extend(reported.concat());
            frame::put_ready(&mut welcome, b'I');
            session.client.output.unsplit(welcome);
            session.serve().await;
        }
        Err(end) => session.client.say_why(not_let_in(end)).await,
    }
    hub.cancels.leave(&key);
    hub.counters.clients.fetch_sub(1, Ordering::Relaxed);
}

/// A member that is lost while it lets a visitor in may let it in later: nothing was begun.
fn not_let_in(end: End) -> End {
    match end {
        End::Lost(error) => not_ready(&error),
        end => end,
    }
}

struct Visitor {
    session: Entered,
    key: Vec<u8>,
}

/// A visitor that the member has let in, and what it is told before its settings are restored.
async fn enter(
    hub: &Hub,
    client: &mut Wire,
    belongings: &Belongings,
) -> Result<(Visitor, BytesMut)> {
    let user = check(hub, &belongings.startup)?;
    let mut server = reach(hub).await?;
    let door = Door::of_visitor(client, user);
    let admitted = log_in(hub, &mut server, &belongings.startup, door).await?;
    let mut welcome = BytesMut::new();
    frame::put(&mut welcome, b'K', &[&admitted.key]);
    for message in &admitted.reported {
        welcome.put_slice(message);
    }
    let session = Entered {
        server,
        life: admitted.life,
        hides_warnings: admitted.hides_warnings,
        cancel: hub.cancels.enter(admitted.key.clone()),
        startup: belongings.startup.clone(),
        secret: None,
    };
    let key = admitted.key;
    Ok((Visitor { session, key }, welcome))
}
