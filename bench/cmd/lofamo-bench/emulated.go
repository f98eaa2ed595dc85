package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// stage is a cluster of real supervisors and two nodes, of which the first is dead: halves of this
// process speak in its host half's name, one after the other.
type stage struct {
	lab   *lab.Lab
	dir   string
	node  fault.NodeID
	cfg   config.Agent
	ids   measure.Identities // of the host half
	epoch fault.Epoch
}

// newStage starts the cluster.
func newStage(ctx context.Context, o options) (*stage, error) {
	dir, err := os.MkdirTemp("", "lofamo-bench-")
	if err != nil {
		return nil, err
	}
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	dims, err := grid.ParseDims("2")
	if err != nil {
		return nil, err
	}
	l, err := lab.Start(starting, cluster.Options{
		Dir: dir, Dims: dims, Supervisors: 3, ServiceInterfaces: 2, Preset: config.PresetDefault, LogLevel: "warn",
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	// No half has so high an epoch: the stage's reports are of a newer life than the real half's.
	s := &stage{lab: l, dir: dir, node: l.Cluster.Info().Nodes[0].ID, epoch: 1 << 17}
	if err := s.silence(starting); err != nil {
		return nil, errors.Join(err, s.close())
	}
	o.progress.f("stage is set\n")
	return s, nil
}

// silence kills the node and takes over its host half's keys.
func (s *stage) silence(ctx context.Context) (err error) {
	mark := s.lab.Mark()
	if _, err := s.lab.Cluster.Inject(ctx, string(s.node), cluster.Fault{Kind: cluster.KillNode}); err != nil {
		return err
	}
	if _, err := s.lab.Wait(ctx, mark, lab.Becomes(string(s.node), "host", lofamov1.State_FAILED)); err != nil {
		return err
	}
	if s.cfg, err = config.LoadAgent(filepath.Join(s.dir, "nodes", string(s.node), "agent.yaml"), nil); err != nil {
		return err
	}
	if s.ids.Half, err = pki.LoadSigner(s.cfg.TLS.HostCert, s.cfg.TLS.HostKey); err != nil {
		return err
	}
	s.ids.Verifier, err = pki.LoadVerifier(s.cfg.TLS.CA, s.cfg.Cluster)
	return err
}

func (s *stage) close() error { return errors.Join(s.lab.Close(), os.RemoveAll(s.dir)) }

// speaker is a half on a stage.
type speaker struct {
	*measure.Half
	*measure.Sender
	epoch fault.Epoch
	stop  func() error
}

// speaker starts a half with so many service interfaces and waits until its paths are as good as they
// get: an armed alternate where there are two.
func (s *stage) speaker(ctx context.Context, interfaces int) (*speaker, error) {
	periods, err := s.lab.Cluster.Periods()
	if err != nil {
		return nil, err
	}
	s.epoch++
	origin := fault.Origin{Node: s.node, Half: fault.HalfHost}
	h := measure.HalfConfig{
		Origin: origin, Epoch: s.epoch, Outbox: halfcore.OutboxConfig(periods, fault.PathDirect), Signer: s.ids.Half, Verifier: s.ids.Verifier,
	}
	h.Outbox.Interfaces = s.cfg.Service.InterfaceNames()[:interfaces]
	for k := range interfaces {
		h.Listen = append(h.Listen, s.cfg.Service.Interfaces()[k].Listen)
		at := map[string]netip.AddrPort{}
		for _, sup := range s.cfg.Supervisors {
			if at[sup.ID], err = netip.ParseAddrPort(sup.Addr(k)); err != nil {
				return nil, err
			}
		}
		h.Supervisors = append(h.Supervisors, at)
	}
	sp := &speaker{Sender: measure.NewSender(h.Outbox.Interfaces), epoch: s.epoch}
	h.Heard = sp.Heard
	if sp.Half, err = measure.NewHalf(h); err != nil {
		return nil, err
	}
	sp.SetHalf(sp.Half)
	running, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- sp.Half.Run(running) }()
	sp.stop = func() error { cancel(); return <-done }
	if err := sp.settle(ctx, interfaces); err != nil {
		return nil, errors.Join(err, sp.stop())
	}
	return sp, nil
}

// settle has the first reports committed and the alternate armed.
func (sp *speaker) settle(ctx context.Context, interfaces int) error {
	waiting, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if _, err := sp.Sender.Run(waiting, measure.StreamPlan{Reports: 10, Rate: 100}); err != nil {
			return err
		}
		if st := sp.Status(); interfaces == 1 || st.GetState() == lofamov1.PathState_ARMED {
			return nil
		}
		if waiting.Err() != nil {
			return fmt.Errorf("no alternate armed: %s", sp.Status())
		}
	}
}

// counted compares a stream's reports with the leader's record.
func (s *stage) counted(ctx context.Context, sp *speaker, first, last uint64) (missing, twice int, copies uint64, err error) {
	r, err := s.lab.Client.ListReports(ctx, &lofamov1.ListReportsRequest{Node: string(s.node), Limit: 4096})
	if err != nil {
		return 0, 0, 0, err
	}
	var noted []uint64
	for _, rep := range r.GetReports() {
		if rep.GetEpoch() == uint64(sp.epoch) && rep.GetHalf() == "host" && rep.GetSeq() >= first && rep.GetSeq() <= last {
			noted = append(noted, rep.GetSeq())
			copies += uint64(rep.GetCopies()) - 1
		}
	}
	missing, twice = measure.Once(first, last, noted)
	return missing, twice, copies, nil
}
