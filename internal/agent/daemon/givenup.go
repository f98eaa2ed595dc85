package daemon

import (
	"fmt"
	"net/netip"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/pki"
)

// While both halves of a node are given up, or cannot be started, no half is left to say why the node is silent. So the daemon tells the
// supervisors, with the host half's key. See docs/adr/0098-given-up-is-a-long-wait.md.

// tellGivenUp sends the supervisors the daemon's report that it has given up both halves. It sends the same report again at each call,
// until a half runs or the state of one changes. Only one goroutine calls it.
func (d *daemon) tellGivenUp() {
	health, both := d.bothGivenUp()
	if !both {
		d.givenUp = nil
		return
	}
	if d.givenUp == nil {
		b, err := d.sealGivenUp(health)
		if d.untold.Set(d.log, "telling the supervisors that both halves are given up", err); err != nil {
			return
		}
		d.givenUp = b
	}
	from := netip.AddrPortFrom(netip.MustParseAddrPort(d.cfg.Agent.Service.Listen).Addr(), 0) // the half's own port is for the half
	s, err := direct.Listen(from.String(), direct.Options{Interface: d.cfg.Agent.Service.Interface})
	if err != nil {
		d.log.Debug("given-up halves not reported", "err", err)
		return
	}
	defer func() { _ = s.Close() }()
	for _, sup := range d.cfg.Agent.Supervisors {
		_ = s.Send(netip.MustParseAddrPort(sup.Addr(0)), d.givenUp) // validated; a lost report is repeated
	}
}

// isDown reports whether a half has no process and is given up, or the machine could not make more starts in a row than its budget has.
func isDown(r halfcore.RecoveryRecord) bool {
	lacks := r.State == halfcore.Restarting && r.Last != nil && r.Last.Cause.Kind == halfcore.NotStarted && r.Last.Attempt > r.Budget
	return r.PID == 0 && (r.State == halfcore.GivenUp || lacks)
}

// bothGivenUp returns the records of the halves, as given up, if both are down and this daemon looks after the host half. It is false on a
// node with two kernels: the daemon of one half knows nothing about the other half.
func (d *daemon) bothGivenUp() (health servicenet.Health, both bool) {
	if d.halves[fault.HalfHost] == nil || !d.cfg.Agent.Window.Zero() {
		return health, false
	}
	for _, h := range [...]fault.Half{fault.HalfHost, fault.HalfDNP} {
		var r halfcore.RecoveryRecord
		if c := d.halves[h]; c != nil {
			r, _ = c.known()
		} else if old, err := ReadRecovery(d.cfg.Agent.StateDir, h); err == nil && old != nil {
			r = old.Record
		}
		if !isDown(r) {
			return health, false
		}
		r.State, r.Until = halfcore.GivenUp, 0
		said := &lofamov1.HalfHealth{Recovery: halfcore.RecoveryStatus(r, half.Monotonic())}
		if h == fault.HalfHost {
			health.Host = said
		} else {
			health.DNP = said
		}
	}
	return health, true
}

// sealGivenUp seals the report. It takes the host half's next boot epoch for it, so the half's next process starts cold.
func (d *daemon) sealGivenUp(health servicenet.Health) ([]byte, error) {
	cfg := d.cfg.Agent
	signer, err := half.LoadSigner(cfg, fault.HalfHost)
	if err != nil {
		return nil, err
	}
	verifier, err := pki.LoadVerifier(cfg.TLS.CA, cfg.Cluster)
	if err != nil {
		return nil, err
	}
	origin := fault.Origin{Node: cfg.Node, Half: fault.HalfHost}
	half.NewRenewer(d.log, origin, cfg.StateDir, signer, verifier).Keep()
	lock, err := lockAlone(regfile.LockFile(d.statePath(half.RegisterFile), fault.HalfHost), "host")
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }()
	epoch, garbled, err := storage.NextEpoch(half.EpochPath(cfg.StateDir, fault.HalfHost))
	if err == nil {
		err = garbled
	}
	if err != nil {
		return nil, fmt.Errorf("next boot epoch: %w", err)
	}
	return servicenet.SealReports([]fault.Report{{ID: fault.ReportID{Origin: origin, Epoch: epoch, Seq: 1}}}, nil, signer,
		servicenet.SealOptions{Health: health})
}
