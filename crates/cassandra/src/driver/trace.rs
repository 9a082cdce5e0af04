//! How long requests take, for whoever looks: `RUST_LOG=cassandra::requests=trace`.

use std::future::Future;
use std::time::Instant;

/// Makes a request, and says what it was and how long it took.
pub(super) async fn traced<T>(what: &'static str, request: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let answer = request.await;
    let micros = began.elapsed().as_micros() as u64;
    tracing::trace!(target: "cassandra::requests", what, micros);
    answer
}
