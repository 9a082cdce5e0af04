//! The task of one client: moves bytes between sockets and the session, and does what the session asks for.

mod admitted;
mod clocks;
mod leaving;
mod limits;
mod long;
mod numbers;
mod rules;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Wake, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Sleep;
use volume::lsn::Lsn;

use crate::core::session::{Context, Effect, Out, Server, Session};
use crate::core::sql::Catalog;
use crate::core::topology::{Place, Topology};
use protocol::frame::Refusal;

use super::catalog::Functions;
use super::handle::{HANDOVER, Handle, KILL, NEWS, SHUTDOWN};
use super::pool::{Held, Pool};
use super::socket::Socket;
use super::{Proxy, Settings};
use crate::config::Scope;
pub use admitted::Admitted;
use limits::{Limit, poll_timer};
use long::long_text;
use numbers::Numbers;

/// No more than this waits for a slow reader; then its server has to wait.
const PENDING_BYTES: usize = 256 << 10;
/// A client that waits for standbys looks at them so often, besides being woken by the first news.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

type Acquiring = Pin<Box<dyn Future<Output = Result<(Held, bool), Refusal>> + Send>>;

/// A client that was let in.
pub struct Client {
    proxy: Arc<Proxy>,
    handle: Arc<Handle>,
    pool: Arc<Pool>,
    /// The settings that were read last, and those of them that count for this client.
    settings: Arc<Settings>,
    scope: Arc<Scope>,
    functions: Functions,
    socket: Socket,
    input: BytesMut,
    out: Out,
    session: Session,
    held: Option<Held>,
    parked: Option<Held>,
    acquiring: Option<Acquiring>,
    position: Option<oneshot::Receiver<Option<Lsn>>>,
    /// A long text of it is being read.
    reading: Option<JoinHandle<()>>,
    timer: Option<Pin<Box<Sleep>>>,
    looks: Option<Pin<Box<Sleep>>>,
    limit: Limit,
    numbers: Numbers,
    is_closing: bool,
    is_shutting_down: bool,
    /// Another process takes it over when it is between two transactions.
    is_leaving: bool,
}

/// Why a client's task comes to rest.
enum Rest {
    /// Either side has ended it.
    Ended,
    /// It can leave for another process.
    CanLeave,
}

impl Client {
    /// A client whose session begins; `greeting` is what it is told first, and `input` what it has said since.
    pub fn new(
        proxy: Arc<Proxy>,
        socket: Socket,
        input: BytesMut,
        greeting: BytesMut,
        admitted: Admitted,
    ) -> Client {
        let Admitted {
            handle,
            pool,
            functions,
            held,
            session,
        } = admitted;
        let out = Out {
            client: greeting,
            ..Out::default()
        };
        let settings = proxy.settings();
        let login = pool.login();
        let own = proxy.stats.of(&login.name, &login.user);
        let numbers = Numbers::new(own, &session.counts());
        let mut client = Client {
            scope: settings.scope(&login),
            settings,
            proxy,
            handle,
            pool,
            functions,
            socket,
            input,
            out,
            session,
            held: None,
            parked: None,
            acquiring: None,
            position: None,
            reading: None,
            timer: None,
            looks: None,
            limit: Limit::default(),
            numbers,
            is_closing: false,
            is_shutting_down: false,
            is_leaving: false,
        };
        if let Some(held) = held {
            client.begin_with(held);
        }
        client.hear_of_handover();
        client
    }

    /// Goes on with the connection that its session has in hand already.
    pub fn go_on_with(&mut self, held: Held) {
        self.hold(held);
    }

    /// It is served elsewhere after all.
    pub fn forget(self) {
        self.proxy.handles.leave(&self.handle);
    }

    /// Begins with this connection in hand.
    fn begin_with(&mut self, mut held: Held) {
        if let Some(server) = held.conn.server.take() {
            self.session.begin_linked(server);
            self.hold(held);
        }
    }

    /// Serves the client until either side ends it.
    pub async fn run(mut self: Box<Self>) {
        while let Rest::CanLeave = poll_fn(|wake| self.poll_run(wake)).await {
            if self.leave().await {
                break;
            }
        }
        self.count();
        self.handle.runs_on(None);
        self.proxy.handles.leave(&self.handle);
    }

    fn poll_run(&mut self, wake: &mut Wake<'_>) -> Poll<Rest> {
        loop {
            if self.poll_writes(wake).is_err() {
                return Poll::Ready(Rest::Ended);
            }
            if self.is_closing {
                // Its last words leave with what the socket takes.
                return if self.out.client.is_empty() && !self.socket.has_unsent() {
                    Poll::Ready(Rest::Ended)
                } else {
                    Poll::Pending
                };
            }
            if self.is_leaving && self.can_leave_now() {
                return Poll::Ready(Rest::CanLeave);
            }
            let is_held_back = self.is_held_back();
            if !is_held_back && (self.take_input() || self.poll_server(wake)) {
                continue;
            }
            match self.poll_client(wake) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(()) => return Poll::Ready(Rest::Ended),
            }
            if self.poll_others(wake) {
                continue;
            }
            if self.is_closing {
                // Its last words are to be sent.
                continue;
            }
            self.show_state();
            if self.keep_limit(wake) {
                continue;
            }
            return Poll::Pending;
        }
    }

    /// Writes what can be written. An error is the client's end.
    fn poll_writes(&mut self, wake: &mut Wake<'_>) -> Result<(), ()> {
        if let Some(held) = &mut self.held
            && (!self.out.server.is_empty() || held.conn.socket.has_unsent())
            && let Poll::Ready(Err(_)) = held.conn.socket.poll_drain(wake, &mut self.out.server)
        {
            self.lose_server();
        }
        if self.out.client.is_empty() && !self.socket.has_unsent() {
            return Ok(());
        }
        let waiting = self.out.client.len();
        let drained = self.socket.poll_drain(wake, &mut self.out.client);
        self.numbers.sent += (waiting - self.out.client.len()) as u64;
        match drained {
            Poll::Ready(Err(_)) => Err(()),
            _ => Ok(()),
        }
    }

    /// True if nothing goes to the server in hand or comes from it: it is the active, and does not prove that it still is.
    fn is_held_back(&self) -> bool {
        let is_active = |server: &Server| server.epoch().is_some();
        self.session.link().is_some_and(is_active) && self.proxy.cluster.topology().is_unproven
    }

    /// Lets the session take what it can of what was read.
    fn take_input(&mut self) -> bool {
        if self.input.is_empty() || !self.session.takes_client() || self.reading.is_some() {
            return false;
        }
        let before = self.input.len();
        let mut rest = BytesMut::new();
        if let Some((at, text)) = long_text(&self.input, &self.proxy.statements) {
            if at == 0 {
                // Others are served meanwhile.
                let proxy = self.proxy.clone();
                let reading = tokio::task::spawn_blocking(move || proxy.statements.learn(&text));
                self.reading = Some(reading);
                return true;
            }
            rest = self.input.split_off(at);
        }
        let mut input = std::mem::take(&mut self.input);
        self.with(|session, cx, out| session.client_input(cx, &mut input, out));
        input.unsplit(rest);
        self.input = input;
        let has_moved = self.input.len() != before;
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        has_moved
    }

    fn poll_server(&mut self, wake: &mut Wake<'_>) -> bool {
        if self.out.client.len() >= PENDING_BYTES {
            return false;
        }
        let Some(held) = &mut self.held else {
            return false;
        };
        let conn = &mut held.conn;
        match conn.socket.poll_read(wake, &mut conn.input) {
            Poll::Pending => false,
            Poll::Ready(Ok(read)) if read > 0 => {
                let mut input = std::mem::take(&mut conn.input);
                let mut rest = conn.rest;
                self.with_server_input(&mut input, &mut rest);
                true
            }
            Poll::Ready(_) => {
                self.lose_server();
                true
            }
        }
    }

    /// The session takes what a server has answered, before what it asks for then is done.
    fn with_server_input(&mut self, input: &mut BytesMut, rest: &mut usize) {
        self.heed_settings();
        let topology = self.proxy.cluster.topology();
        let catalog = self.functions.read().clone();
        let cx = context(&self.proxy, &self.scope, &catalog, &topology);
        self.session.server_input(&cx, input, rest, &mut self.out);
        if let Some(held) = &mut self.held {
            held.conn.rest = *rest;
            if !input.is_empty() {
                held.conn.input = std::mem::take(input);
            }
        }
        self.note_activity();
        self.do_effects(&topology);
    }

    fn poll_client(&mut self, wake: &mut Wake<'_>) -> Result<bool, ()> {
        if self.input.len() >= PENDING_BYTES && !self.session.takes_client()
            || self.out.server.len() >= PENDING_BYTES
        {
            return Ok(false);
        }
        match self.socket.poll_read(wake, &mut self.input) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(read)) if read > 0 => {
                self.numbers.received += read as u64;
                Ok(true)
            }
            Poll::Ready(_) => Err(()),
        }
    }

    fn poll_others(&mut self, wake: &mut Wake<'_>) -> bool {
        let mut has_moved = false;
        if let Some(acquiring) = &mut self.acquiring
            && let Poll::Ready(acquired) = acquiring.as_mut().poll(wake)
        {
            self.acquiring = None;
            has_moved = true;
            match acquired {
                Ok((held, waited)) => self.link(held, waited),
                Err(refusal) => self.with(|session, cx, out| session.refused(cx, &refusal, out)),
            }
        }
        if let Some(position) = &mut self.position
            && let Poll::Ready(position) = Pin::new(position).poll(wake)
        {
            self.position = None;
            has_moved = true;
            let position = position.ok().flatten();
            self.with(|session, cx, out| session.position(cx, position, out));
        }
        if let Some(reading) = &mut self.reading
            && Pin::new(reading).poll(wake).is_ready()
        {
            // If it was not read, it is now.
            self.reading = None;
            has_moved = true;
        }
        if poll_timer(&mut self.timer, wake) {
            has_moved = true;
            self.with(|session, cx, out| session.woken(cx, out));
        }
        if poll_timer(&mut self.looks, wake) {
            has_moved = true;
            self.with(|session, cx, out| session.news(cx, out));
        }
        if self.session.waits_for_version() && self.looks.is_none() {
            self.looks = Some(Box::pin(tokio::time::sleep(LOOK_AGAIN)));
            has_moved = true;
        }
        let pokes = self.handle.take_pokes(wake);
        if pokes != 0 {
            has_moved = true;
            self.heed(pokes);
        }
        has_moved
    }

    fn heed(&mut self, pokes: u32) {
        if pokes & NEWS != 0 {
            self.with(|session, cx, out| session.news(cx, out));
        }
        if pokes & HANDOVER != 0 {
            self.hear_of_handover();
        }
        self.is_shutting_down |= pokes & SHUTDOWN != 0;
        if pokes & KILL != 0 {
            let refusal =
                Refusal::fatal("57P01", "the connection was ended by the proxy's operator");
            self.with(|session, _, out| session.close(&refusal, out));
        } else if self.is_shutting_down && self.session.is_idle() {
            let refusal = Refusal::fatal("57P01", "the proxy is shutting down")
                .hint("Connect again, to another proxy.");
            self.with(|session, _, out| session.close(&refusal, out));
        }
    }

    fn lose_server(&mut self) {
        self.with(|session, cx, out| session.server_lost(cx, out));
        // Whatever the session thinks of it: a broken connection is of no use to anybody.
        self.held = None;
    }

    /// Lets the session do something, and does what it asks for.
    fn with(&mut self, act: impl FnOnce(&mut Session, &Context<'_>, &mut Out)) {
        self.heed_settings();
        let topology = self.proxy.cluster.topology();
        let catalog = self.functions.read().clone();
        let cx = context(&self.proxy, &self.scope, &catalog, &topology);
        act(&mut self.session, &cx, &mut self.out);
        self.note_activity();
        self.do_effects(&topology);
    }

    fn do_effects(&mut self, topology: &Topology) {
        while !self.out.effects.is_empty() {
            for effect in std::mem::take(&mut self.out.effects) {
                self.do_effect(effect, topology);
            }
        }
    }

    fn do_effect(&mut self, effect: Effect, topology: &Topology) {
        match effect {
            Effect::AcquireActive { fresh } => {
                if fresh {
                    self.pool.close_idle();
                }
                self.acquire(Place::Active, topology);
            }
            Effect::AcquireStandby(name) => self.acquire(Place::Standby(name), topology),
            Effect::Park => self.parked = self.held.take(),
            Effect::Unpark => {
                if let Some(held) = self.parked.take() {
                    self.hold(held);
                }
            }
            Effect::Return(server) => self.give_back(server),
            Effect::Drop => {
                self.held = None;
                self.handle.runs_on(None);
            }
            Effect::DropParked => self.parked = None,
            Effect::AskPosition { shown } => self.position = self.proxy.positions.ask(shown).into(),
            Effect::LearnFunctions => self.proxy.catalogs.learn_again(&self.pool.login().database),
            Effect::Wake(after) => self.timer = Some(Box::pin(tokio::time::sleep(after))),
            Effect::Close => self.is_closing = true,
        }
    }

    fn acquire(&mut self, place: Place, topology: &Topology) {
        self.numbers.waits();
        match self.pool.try_take(&place, topology) {
            Some(held) => self.link(held, false),
            None => self.acquiring = Some(Box::pin(self.pool.clone().take(place))),
        }
    }

    fn link(&mut self, mut held: Held, waited: bool) {
        let Some(server) = held.conn.server.take() else {
            return;
        };
        self.numbers.has_waited();
        self.hold(held);
        self.with(|session, cx, out| session.linked(cx, server, waited, out));
    }

    fn hold(&mut self, held: Held) {
        self.handle.runs_on(Some(held.conn.target()));
        self.held = Some(held);
    }

    fn give_back(&mut self, server: Box<Server>) {
        self.handle.runs_on(None);
        if let Some(held) = self.held.take() {
            self.pool.put(held, server);
        }
    }
}

fn context<'a>(
    proxy: &'a Proxy,
    scope: &'a Scope,
    catalog: &'a Catalog,
    topology: &'a Topology,
) -> Context<'a> {
    Context {
        rules: &scope.rules,
        statements: &proxy.statements,
        catalog,
        topology,
        load: &*proxy.loads,
    }
}
