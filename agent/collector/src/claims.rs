//! Tracks which machine each credential sends for. An `agent_id` belongs to one credential, so nobody's flows appear
//! under another machine.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use proto::AgentIdentity;
use thiserror::Error;
use tls::identity::Identity;

/// The most credentials that are remembered. Certificates may carry any number of names. Beyond this, one without an
/// open call is forgotten.
const MOST: usize = 20_000;

/// Clones share the claims.
#[derive(Clone, Default)]
pub(super) struct Claims(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    /// By identity, for identities with a credential.
    machines: HashMap<Identity, Machine>,
    owners: HashMap<String, Identity>,
}

struct Machine {
    agent_id: String,
    calls: usize,
}

/// A call of an agent with a credential. Dropping it ends the claim of this call.
pub(super) struct Claim {
    claims: Claims,
    identity: Identity,
}

/// Why an agent may not send under the name it gives.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum Refused {
    #[error("the credential of {identity} does not belong to host {hostname}")]
    Host {
        identity: Identity,
        hostname: String,
    },
    #[error("{identity} sends as agent_id {agent_id}, which belongs to {owner}")]
    Machine {
        identity: Identity,
        agent_id: String,
        owner: Identity,
    },
    #[error("{identity} sends as agent_id {agent_id} while another of its calls sends as {other}")]
    Several {
        identity: Identity,
        agent_id: String,
        other: String,
    },
    #[error("{MOST} credentials send to this collector, the most that it can track")]
    Full,
}

impl Claims {
    /// Checks that an agent may send under the name it gives. An agent without a credential may use any `agent_id`
    /// that no credential owns.
    pub(super) fn claim(
        &self,
        identity: &Identity,
        agent: &AgentIdentity,
    ) -> Result<Option<Claim>, Refused> {
        let (hostname, agent_id) = (&agent.hostname, &agent.agent_id);
        if !hostname.is_empty() && !identity.may_be_host(hostname) {
            return Err(Refused::Host {
                identity: identity.clone(),
                hostname: hostname.clone(),
            });
        }
        if agent_id.is_empty() {
            return Ok(None);
        }
        let mut table = self.table();
        if let Some(owner) = table.owners.get(agent_id)
            && owner != identity
        {
            return Err(Refused::Machine {
                identity: identity.clone(),
                agent_id: agent_id.clone(),
                owner: owner.clone(),
            });
        }
        if !matches!(identity, Identity::Named(_)) {
            return Ok(None);
        }
        table.add(identity, agent_id)?;
        Ok(Some(Claim {
            claims: self.clone(),
            identity: identity.clone(),
        }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Code under this lock does not panic halfway, so the data behind a poisoned lock is consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn add(&mut self, identity: &Identity, agent_id: &str) -> Result<(), Refused> {
        if let Some(machine) = self.machines.get_mut(identity) {
            if machine.agent_id == agent_id {
                machine.calls += 1;
                return Ok(());
            }
            if machine.calls > 0 {
                return Err(Refused::Several {
                    identity: identity.clone(),
                    agent_id: agent_id.to_owned(),
                    other: machine.agent_id.clone(),
                });
            }
            // The host was reinstalled.
            self.owners.remove(&machine.agent_id);
        } else if self.machines.len() >= MOST {
            let away = self.machines.iter().find(|(_, machine)| machine.calls == 0);
            let away = away.map(|(identity, _)| identity.clone());
            let machine = away.and_then(|away| self.machines.remove(&away));
            let machine = machine.ok_or(Refused::Full)?;
            self.owners.remove(&machine.agent_id);
        }
        let machine = Machine {
            agent_id: agent_id.to_owned(),
            calls: 1,
        };
        self.machines.insert(identity.clone(), machine);
        self.owners.insert(agent_id.to_owned(), identity.clone());
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(machine) = self.claims.table().machines.get_mut(&self.identity) {
            machine.calls -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(hostname: &str, agent_id: &str) -> AgentIdentity {
        AgentIdentity {
            hostname: hostname.to_owned(),
            agent_id: agent_id.to_owned(),
            ..AgentIdentity::default()
        }
    }

    #[test]
    fn a_machine_is_that_of_the_credential_that_had_it_first() {
        let claims = Claims::default();
        let [one, two] = ["one", "two"].map(|name| Identity::named(name).unwrap());
        let first = claims.claim(&one, &agent("one", "m1")).unwrap();
        let second = claims.claim(&one, &agent("", "m1")).unwrap();
        for other in [&two, &Identity::User(0)] {
            let refused = claims.claim(other, &agent("", "m1")).err().unwrap();
            assert!(matches!(refused, Refused::Machine { owner, .. } if owner == one));
        }
        let refused = claims.claim(&two, &agent("one", "m2")).err();
        assert!(matches!(refused, Some(Refused::Host { .. })));
        let refused = claims.claim(&one, &agent("one", "m2")).err();
        assert!(matches!(refused, Some(Refused::Several { .. })));
        drop((first, second));
        // The machine stays owned while its agent is away.
        assert!(claims.claim(&two, &agent("two", "m1")).is_err());
        // Once the credential has another machine, the first one is free.
        let other = claims.claim(&one, &agent("one", "m2")).unwrap();
        assert!(claims.claim(&two, &agent("two", "m1")).is_ok());
        drop(other);
    }

    #[test]
    fn without_a_credential_any_machine_may_be_claimed_that_has_none() {
        let claims = Claims::default();
        for identity in [Identity::User(0), Identity::User(1)] {
            assert!(claims.claim(&identity, &agent("a", "m")).unwrap().is_none());
        }
        let named = Identity::named("a").unwrap();
        assert!(claims.claim(&named, &agent("a", "m")).unwrap().is_some());
        assert!(claims.claim(&Identity::User(0), &agent("a", "m")).is_err());
    }

    #[test]
    fn those_that_are_away_make_room_for_others() {
        let claims = Claims::default();
        let name = |number: usize| Identity::named(&format!("h{number}")).unwrap();
        let claim = |number| claims.claim(&name(number), &agent("", &format!("m{number}")));
        let mut open: Vec<_> = (0..MOST).map(|number| claim(number).unwrap()).collect();
        assert_eq!(claim(MOST).err(), Some(Refused::Full));
        open.pop();
        open.push(claim(MOST).unwrap());
        let table = claims.table();
        assert_eq!((table.machines.len(), table.owners.len()), (MOST, MOST));
    }
}
