//! PostgreSQL alone: what everything is compared with. Killed, it is started again at once on the same
//! machine, as systemd would; a machine that is gone for good it does not survive.

use std::path::Path;

use async_trait::async_trait;
use nix::unistd::Pid;

use super::Options;
use super::system::{Death, Machines, NORTH, System, open_parameters};
use cluster::clients::schema::Server;
use cluster::stock::{Place, Stock};

pub(super) struct Single {
    stock: Stock,
}

impl Single {
    /// Creates and starts it.
    pub async fn start(
        options: &Options,
        machines: &Machines,
        dir: &Path,
    ) -> anyhow::Result<Single> {
        let place = Place {
            address: machines.address(NORTH),
            wrapper: machines.wrapper(NORTH),
        };
        let parameters = open_parameters(options, dir)?;
        let stock = Stock::start_at(place, &dir.join(NORTH), &options.bin, parameters).await?;
        Ok(Single { stock })
    }
}

#[async_trait]
impl System for Single {
    fn servers(&self) -> Vec<Server> {
        vec![self.stock.server()]
    }

    fn processes(&self) -> Vec<(String, Pid)> {
        let pid = self.stock.pid();
        pid.map(|pid| ("active".to_owned(), pid))
            .into_iter()
            .collect()
    }

    async fn wait_protected(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    async fn lose_active(&mut self) -> anyhow::Result<Death> {
        let death = Death::by(|| self.stock.kill())?;
        self.stock.restart().await?;
        Ok(death)
    }

    fn successor(&self) -> Vec<Pid> {
        Vec::new()
    }

    async fn give_back(&mut self) -> anyhow::Result<Option<Pid>> {
        Ok(None)
    }
}
