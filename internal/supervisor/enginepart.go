package supervisor

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/replica"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// start dials the other replicas and creates the engine, and this replica's copy of the map. A parent of regions has
// neither.
func (p *enginePart) start(s *Supervisor) error {
	var err error
	if p.peers, err = replica.Dial(p.replicas.addresses(s.cfg.ID), s.peerTLS); err != nil || s.cfg.Parent() {
		return err
	}
	p.Engine = engine.New(engine.Config{
		Awareness: s.awareness(), Meta: store.Meta{Cluster: s.cfg.Cluster, Dims: s.names.Dims().String()},
		Challenger: everywhere{s}, Metrics: s.metrics.Metrics, Logger: s.logger, Names: s.names, Seed: s.seed, Marks: s.marks, Masks: s.masks,
		Revoked: s.revokedNodes, KeepIncidents: s.cfg.Etcd.KeepIncidents,
	}, s.store.Etcd)
	p.local = replica.NewCopy(replica.CopyConfig{
		Store: s.store.Etcd, Names: s.names, Logger: s.logger,
		OnChange: s.mapChanged,
	})
	return nil
}

// stop closes the connections to the other replicas.
func (p *enginePart) stop(context.Context) error {
	if p.peers == nil {
		return nil
	}
	return p.peers.Close()
}

// awareness converts the configuration for the machine. A new leader waits one digest period, so that evidence from
// before its term cannot outweigh evidence that it receives itself.
func (s *Supervisor) awareness() awareness.Config {
	p, ids := s.periods, s.names.Topology().IDs()
	return awareness.Config{
		Dims: s.names.Dims(), IDs: ids, Foreign: s.foreign(ids), Supervisor: s.cfg.ID,
		ChallengeNode: p.ChallengeNode, ChallengeHalf: p.ChallengeHalf, ChallengeSingle: p.ChallengeSingle,
		DigestPeriod: p.DigestPeriod, DigestMisses: p.DigestMisses, Grace: p.DigestPeriod, StartGrace: p.LinkGrace, LinkGrace: p.LinkGrace,
		HalfBound: p.HalfBound(), PauseSettle: p.PauseSettle(), HoldOff: p.LinkHoldOff, Horizon: s.cfg.Foresight.D(),
		StopLimit: s.cfg.StopTime(), Quiet: s.cfg.IncidentQuiet.D(),
		Nonce: func() (n [16]byte) {
			_, _ = rand.Read(n[:]) // never fails
			return n
		},
	}
}

// everywhere sends challenges from this replica's own addresses and from those of its followers. Repeated challenges
// go direct only.
type everywhere struct{ s *Supervisor }

func (e everywhere) Challenge(c awareness.Challenge) bool {
	c.Term, c.Issued = e.s.engine.Term(), e.s.born.UnixNano()+time.Since(e.s.born).Nanoseconds()
	if !c.Again {
		e.s.engine.followers.Challenge(c)
	}
	return e.s.ingest.sender.Challenge(c)
}

// held returns why verdicts wait, or why the silence of nodes does not count; a parent of regions has no intake and judges
// nothing.
func (s *Supervisor) held() string {
	if s.ingest.intake == nil {
		return ""
	}
	why := []string{s.engine.Held(), s.ingest.intake.Holding()}
	return strings.Join(slices.DeleteFunc(why, func(w string) bool { return w == "" }), "; ")
}

// Behind implements engine.Challenger.
func (e everywhere) Behind() time.Duration {
	return max(e.s.ingest.sender.Behind(), e.s.ingest.intake.Behind())
}

// fullDigests forwards to the intake, which is created after the forwarder.
type fullDigests struct{ s *Supervisor }

func (d fullDigests) RequestFull(origins []fault.Origin) { d.s.ingest.intake.RequestFull(origins) }
