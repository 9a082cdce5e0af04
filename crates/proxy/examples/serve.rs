//! A proxy by itself: `serve CONFIG.toml`, for trying it out against any PostgreSQL and for measuring it.

use std::path::Path;
use std::sync::Arc;

use proxy::config::Config;
use proxy::driver::file_source::FileSource;
use proxy::driver::{Predecessor, Proxy, serve};
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let path = std::env::args().nth(1).ok_or("usage: serve CONFIG.toml")?;
    let config = Config::load(Path::new(&path))?;
    let file = config
        .cluster_file
        .clone()
        .ok_or("the configuration needs a cluster_file")?;
    let runtime = if config.threads == 1 {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
    } else {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.threads)
            .enable_all()
            .build()?
    };
    runtime.block_on(async {
        let predecessor = Predecessor::meet().await?;
        let source = Arc::new(FileSource::new(file, &config)?);
        let proxy = Proxy::new(config, source, None)?;
        proxy.allow_restart();
        let interrupted = async {
            // Without the signal it serves until it is killed.
            let _ = tokio::signal::ctrl_c().await;
        };
        serve(proxy, predecessor, interrupted).await?;
        Ok(())
    })
}
