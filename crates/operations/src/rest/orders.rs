//! Orders over HTTP: what changes something, each with the token or a client's certificate.

use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use coordination::channel::{ChannelError, Request};
use coordination::records::unix_ms;
use coordination::records::{Control, EditError, Heartbeat, Record};
use dax::ids::NodeName;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::https::Client;
use super::{Refusal, Shared, reply, text, unavailable};
use crate::configure::{self, Edit, Settings};
use crate::handover::{self, HandoverError, How};
use crate::operate::{OperateError, Operator, parse_time};

/// What the body of a switchover or a failover may say.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Order {
    /// Who shall become the active.
    candidate: Option<NodeName>,
    /// Who is it now: a check against orders that come twice.
    leader: Option<NodeName>,
    /// When, if not at once: RFC 3339, or `in 5m`.
    scheduled_at: Option<String>,
}

/// What was done.
enum Done {
    Said(String),
    Accepted(String),
    Document(Value),
}

/// Carries an order out, if it shows the token or a certificate.
pub(super) async fn order(
    shared: &Shared,
    client: &Client,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Response {
    if let Err((code, why)) = admit(shared, client, headers) {
        return text(code, why);
    }
    let post = method == Method::POST;
    let done = match path.trim_end_matches('/') {
        "/switchover" if post => switch(shared, How::Planned, body).await,
        "/switchover" if method == Method::DELETE => unschedule(shared).await,
        "/failover" if post => switch(shared, How::IfPossible, body).await,
        "/restart" if post => restart(shared).await,
        "/reinitialize" if post => reinitialize(shared).await,
        "/reload" if post => reload(shared).await,
        "/config" if method == Method::PATCH => patch(shared, body).await,
        _ => Err((StatusCode::NOT_FOUND, "no such order\n".to_owned())),
    };
    match done {
        Ok(Done::Said(said)) => text(StatusCode::OK, said),
        Ok(Done::Accepted(said)) => text(StatusCode::ACCEPTED, said),
        Ok(Done::Document(document)) => reply(StatusCode::OK, &document),
        Err((code, why)) => text(code, why),
    }
}

/// True if a request shows a certificate or the token.
fn admit(shared: &Shared, client: &Client, headers: &HeaderMap) -> Result<(), Refusal> {
    if client.certified {
        return Ok(());
    }
    let Some(token) = shared.token else {
        let (code, why) = match shared.asks_certificates {
            true => (StatusCode::UNAUTHORIZED, "show a client certificate\n"),
            false => (
                StatusCode::FORBIDDEN,
                "orders are refused: this node has no [rest] token\n",
            ),
        };
        return Err((code, why.to_owned()));
    };
    let shown = headers
        .get(header::AUTHORIZATION)
        .and_then(|v| v.to_str().ok());
    let shown = shown.and_then(|value| value.strip_prefix("Bearer "));
    match shown.map(|shown| Sha256::digest(shown.trim())) {
        Some(digest) if digest[..] == token => Ok(()),
        _ => Err((
            StatusCode::UNAUTHORIZED,
            "show the token: Authorization: Bearer ...\n".to_owned(),
        )),
    }
}

/// What a body says; nothing in it says nothing.
fn read<T: Default + serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    if body.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(body)
        .map_err(|e| (StatusCode::BAD_REQUEST, format!("not an order: {e}\n")))
}

async fn operator(shared: &Shared) -> Result<Operator, Refusal> {
    Ok(Operator {
        storage: shared.storage().await?.clone(),
        me: shared.party.clone(),
    })
}

async fn switch(shared: &Shared, how: How, body: &[u8]) -> Result<Done, Refusal> {
    let order: Order = read(body)?;
    let operator = operator(shared).await?;
    let storage = operator.storage.as_ref();
    if let Some(leader) = &order.leader {
        let beat = Heartbeat::load(storage).await.map_err(unavailable)?;
        if beat.is_none_or(|beat| beat.node != *leader) {
            let why = format!("{leader} is not the leader\n");
            return Err((StatusCode::PRECONDITION_FAILED, why));
        }
    }
    if let Some(at) = &order.scheduled_at {
        if how != How::Planned {
            let why = "a failover cannot be scheduled: use /switchover\n";
            return Err((StatusCode::BAD_REQUEST, why.to_owned()));
        }
        let wrong = |why| (StatusCode::UNPROCESSABLE_ENTITY, format!("{why}\n"));
        let at_unix_ms = parse_time(at, unix_ms()).map_err(wrong)?;
        let planned = operator.schedule(at_unix_ms, order.candidate).await;
        planned.map_err(refusal)?;
        return Ok(Done::Accepted("Switchover scheduled\n".to_owned()));
    }
    let done = handover::hand_over(storage, &shared.party, order.candidate, how).await;
    let beat = done.map_err(|e| refusal(e.into()))?;
    let said = format!("Successfully switched over to \"{}\"\n", beat.node);
    Ok(Done::Said(said))
}

async fn unschedule(shared: &Shared) -> Result<Done, Refusal> {
    let done = operator(shared).await?.unschedule().await;
    match done {
        Ok(_) => Ok(Done::Said("scheduled switchover deleted\n".to_owned())),
        Err(OperateError::Edit(EditError::Refused(why))) => {
            Err((StatusCode::NOT_FOUND, format!("{why}\n")))
        }
        Err(error) => Err(refusal(error)),
    }
}

async fn restart(shared: &Shared) -> Result<Done, Refusal> {
    let done = operator(shared).await?.restart(&shared.me.node).await;
    done.map_err(refusal)?;
    Ok(Done::Said("restarted successfully\n".to_owned()))
}

async fn reinitialize(shared: &Shared) -> Result<Done, Refusal> {
    let done = operator(shared).await?.reinitialize(&shared.me.node).await;
    done.map_err(refusal)?;
    Ok(Done::Said("reinitialized successfully\n".to_owned()))
}

/// Of this node only, as with Patroni.
async fn reload(shared: &Shared) -> Result<Done, Refusal> {
    let order = Request::Reload { journal: 0 };
    match shared.process.request(order).await {
        Ok(_) => Ok(Done::Accepted("reload scheduled\n".to_owned())),
        Err(why) => Err((StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))),
    }
}

/// The cluster's configuration.
pub(super) async fn config(shared: &Shared) -> Result<Value, Refusal> {
    let storage = shared.storage().await?.as_ref();
    let control = Control::read(storage).await.map_err(unavailable)?;
    Ok(document(&control))
}

fn document(control: &Control) -> Value {
    let mut document = json!(Settings::of(control));
    document["version"] = json!(control.version);
    document["pause"] = json!(control.is_paused());
    document
}

/// A patch of the configuration; as with Patroni its `pause` switches takeovers off and on.
async fn patch(shared: &Shared, body: &[u8]) -> Result<Done, Refusal> {
    let mut patch: Value = read(body)?;
    let Some(fields) = patch.as_object_mut() else {
        let why = "a patch is a JSON object\n";
        return Err((StatusCode::BAD_REQUEST, why.to_owned()));
    };
    let operator = operator(shared).await?;
    let storage = operator.storage.as_ref();
    if let Some(pause) = fields.remove("pause") {
        let now = Control::read(storage).await.map_err(unavailable)?;
        match (pause == true, now.is_paused()) {
            (true, false) => drop(operator.pause(None).await.map_err(refusal)?),
            (false, true) => drop(operator.resume().await.map_err(refusal)?),
            _ => {}
        }
    }
    let by = shared.me.node.as_str();
    let control = if patch.as_object().is_some_and(|fields| !fields.is_empty()) {
        let edit = Edit::Patch(vec![patch]);
        let edited = configure::edit(storage, by, &edit, &shared.facts.bin).await;
        edited.map_err(|e| refusal(e.into()))?
    } else {
        Control::read(storage).await.map_err(unavailable)?
    };
    Ok(Done::Document(document(&control)))
}

/// What an error is in HTTP.
fn refusal(error: OperateError) -> Refusal {
    let code = match &error {
        OperateError::Refused(_)
        | OperateError::NotNow(_)
        | OperateError::NoSuchNode(_)
        | OperateError::Handover(HandoverError::NoCandidate(_) | HandoverError::NobodyServes) => {
            StatusCode::PRECONDITION_FAILED
        }
        OperateError::Edit(EditError::Refused(_)) => StatusCode::UNPROCESSABLE_ENTITY,
        OperateError::Edit(EditError::Changed { .. } | EditError::Busy { .. })
        | OperateError::Channel(ChannelError::Refusal { .. }) => StatusCode::CONFLICT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, format!("{error}\n"))
}
