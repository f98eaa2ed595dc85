// Package agent runs the two halves of a node: the shells that do what the pure machines of
// hostcore and dnpcore want, each in a process of its own, and the daemon that starts both.
//
// A half is one machine behind one mutex. Whoever has something for it (the timer, a reader of a
// socket, the sensors) takes the mutex, steps the machine, does what the output says and lets go;
// so a packet costs no hand-over to another goroutine, and nothing is done twice at a time. Nothing
// in there blocks but the boot epoch's rare fsync. All that is periodic rides on one timer.
//
// It decides nothing: states and reports are the machines' business, delivery is
// pkg/servicenet's, links are pkg/torus'.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/backup"
	"github.com/lofamo/lofamo/internal/agent/delivery"
	"github.com/lofamo/lofamo/internal/agent/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/epoch"
	"github.com/lofamo/lofamo/internal/agent/keeper"
	"github.com/lofamo/lofamo/internal/agent/notify"
	"github.com/lofamo/lofamo/internal/agent/peerfile"
	"github.com/lofamo/lofamo/internal/agent/topo"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/pki"
)

// The files in a node's state directory.
const (
	RegisterFile    = "registers"
	RunSocket       = "run.sock"
	HostInjectSock  = "host.inject.sock"
	DNPInjectSock   = "dnp.inject.sock"
	epochFileSuffix = ".epoch"
	spoolFileSuffix = ".spool"
)

// common is what the two shells share.
type common struct {
	cfg      config.Agent // as the supervisors have told it: the place of a spare, the peers
	periods  config.Periods
	topo     *topo.Map                 // names of neighbours are those of the start
	around   *atomic.Pointer[topo.Map] // names of neighbours are those of now
	peers    *dnpcore.PeersConfig
	half     fault.Half
	log      *slog.Logger
	signer   *pki.Signer
	verifier *pki.Verifier
	trust    *trust
	keeper   *keeper.Keeper
	copy     *resumption
	tests    string           // what the daemon was told of the self-test
	unkept   string           // why reports are not kept, as the machine was told
	manager  *notify.Notifier // of a half that is a service of its own
	debug    bool             // the log takes debug lines
}

// prepare checks the configuration and loads the half's keys.
func prepare(cfg config.Agent, half fault.Half, log *slog.Logger) (common, error) {
	if err := cfg.Validate(); err != nil {
		return common{}, invalid(err)
	}
	periods, err := cfg.Timing()
	if err != nil {
		return common{}, invalid(err)
	}
	word, lost := peerfile.Load(filepath.Join(cfg.StateDir, peerfile.Name))
	known := peersConfig(cfg, word, lost)
	if cfg = asTold(cfg, word); cfg.Spare && !word.Placed {
		return common{}, &ConfigError{fmt.Errorf("node %s is a spare without a place: lofamo-agent run waits until it is told one", cfg.Node)}
	}
	around, err := topoOf(cfg)
	if err != nil {
		return common{}, invalid(err)
	}
	c := common{
		cfg: cfg, periods: periods, half: half, topo: around, around: new(atomic.Pointer[topo.Map]), peers: known,
		log: log.With("node", string(cfg.Node), "half", half.String()), debug: log.Enabled(context.Background(), slog.LevelDebug),
	}
	c.around.Store(around)
	if cfg.Platform == config.PlatformDPU {
		c.log.Warn("platform dpu is not available: the halves share a register file and so a kernel; reports and metrics say shared-kernel")
		c.cfg.Platform = config.PlatformSharedKernel
	}
	if lost != nil {
		c.log.Error("what was told of the peers is lost: the configuration stands until the supervisors have spoken", "err", lost)
	}
	if c.signer, err = loadSigner(cfg, half); err != nil {
		return common{}, &ConfigError{err}
	}
	registry := pki.NewRegistry()
	if c.verifier, err = pki.LoadVerifier(cfg.TLS.CA, cfg.Cluster, pki.WithRegistry(registry)); err != nil {
		return common{}, &ConfigError{err}
	}
	c.trust = newTrust(&c, registry)
	if err := makeStateDir(cfg.StateDir); err != nil {
		return common{}, err
	}
	c.trust.renewals.keep()
	armFailpoints(cfg, half.String(), c.log)
	return c, nil
}

// makeStateDir makes the state directory, or refuses one into which others may put what the halves
// would take for their own: sockets, register file, boot epochs.
func makeStateDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if m := info.Mode(); m.Perm()&0o022 != 0 {
		return fmt.Errorf("state directory %s: has mode %04o: others may write to it: want 0755 or less", path, m.Perm())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("state directory %s: belongs to user %d: want %d, who runs this, or root", path, st.Uid, os.Geteuid())
	}
	return nil
}

func loadSigner(cfg config.Agent, half fault.Half) (*pki.Signer, error) {
	cert, key := cfg.TLS.HostCert, cfg.TLS.HostKey
	if half == fault.HalfDNP {
		cert, key = cfg.TLS.DNPCert, cfg.TLS.DNPKey
	}
	s, err := pki.LoadSigner(cert, key)
	if err != nil {
		return nil, err
	}
	if got, want := s.Identity(), pki.NodeIdentity(cfg.Cluster, cfg.Node, half); got != want {
		return nil, fmt.Errorf("certificate %s: is that of %s: want %s", cert, got, want)
	}
	return s, nil
}

// Check finds what is wrong with a configuration that can be found without starting: fields,
// certificates and keys of both halves, the gossip key.
func Check(cfg config.Agent) error {
	if err := cfg.Validate(); err != nil {
		return invalid(err)
	}
	var errs []error
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		_, err := loadSigner(cfg, h)
		errs = append(errs, err)
	}
	_, err := pki.LoadVerifier(cfg.TLS.CA, cfg.Cluster)
	errs = append(errs, err)
	if cfg.Service.GossipListen != "" {
		_, err := pki.LoadGossipKeys(cfg.Service.GossipKeyFile)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return &ConfigError{err}
	}
	return nil
}

func (c *common) self() fault.Origin { return fault.Origin{Node: c.cfg.Node, Half: c.half} }

// maxHops is what a message of this half may make in the torus.
func (c *common) maxHops() uint8 { return c.cfg.HopLimit() }

func (c *common) statePath(name string) string { return filepath.Join(c.cfg.StateDir, name) }

func (c *common) epochPath() string { return c.statePath(c.half.String() + epochFileSuffix) }

// nextEpoch counts this start. It must be called under the half's lock on the register file.
func (c *common) nextEpoch() (fault.Epoch, error) {
	e, garbled, err := epoch.Next(c.epochPath())
	if garbled != nil {
		c.log.Warn("boot epoch lost: the supervisors will say where to go on", "err", garbled)
	}
	return e, err
}

// openKeeper opens the half's spool, and returns what it kept of earlier lives. It must be called under
// the half's lock on the register file.
func (c *common) openKeeper(cs *closers) []servicenet.Kept {
	boot, err := keeper.BootID()
	if err != nil {
		c.log.Warn("kept reports will seem to be of an earlier boot", "err", err)
	}
	k, kept := keeper.Open(keeper.Config{
		Path: c.statePath(c.half.String() + spoolFileSuffix), Size: c.cfg.Service.SpoolBytes, Origin: c.self(),
		Logger: c.log, Boot: boot, Now: backup.SinceBoot, Copy: c.copy.file, Rescued: c.copy.rescued,
	})
	c.copy.rescued = nil
	c.keeper = k
	cs.add(k.Close)
	return kept
}

// spoolState says whether the machine must be told of the spool, and what.
func (c *common) spoolState() (servicenet.SpoolState, bool) {
	why := c.keeper.Why()
	if why == c.unkept {
		return servicenet.SpoolState{}, false
	}
	c.unkept = why
	return servicenet.SpoolState{Err: why}, true
}

// carryOut does what a step asks for besides sending: before that, for a report that is sent under an
// epoch which is lost would come to be another's.
func (c *common) carryOut(e delivery.Effects, numbers backup.Numbers, p *page) {
	if e.NewEpoch != 0 {
		if err := epoch.Set(c.epochPath(), e.NewEpoch); err != nil {
			c.log.Error("boot epoch not kept: the next start will ask the supervisors again", "err", err)
		}
		p.setEpoch(e.NewEpoch)
	}
	c.storeNumbers(numbers) // before the reports: one with a number that was not given is of a later life
	if failpoint.Hit(failpoint.SpoolKeep) == failpoint.Drop {
		c.keeper.KeepCopied(e.Keep)
	} else {
		c.keeper.Keep(e.Keep)
	}
	c.traceReports(e)
	c.keeper.Forget(e.Forget)
	for _, n := range e.Told {
		level := slog.LevelInfo
		if n.Warn {
			level = slog.LevelWarn
		}
		c.log.Log(context.Background(), level, n.Text)
	}
}

// alarm is the one timer of a half. Its methods are called under the half's mutex.
type alarm struct {
	timer *time.Timer
	wake  time.Time // what the machine wanted at its last step
	at    time.Time // when the timer rings; zero: it has rung, and that is being dealt with
}

func newAlarm() *alarm { return &alarm{timer: time.NewTimer(time.Hour)} }

// minRest is what a half rests at least from one ring to the next. Machines wake some milliseconds
// from now; one that wanted to be woken in the past, time and again, must not spin.
const minRest = 500 * time.Microsecond

// rang notes that the timer has rung; what follows sets it anew.
func (a *alarm) rang() { a.at = time.Time{} }

// set makes the timer ring when the machine wants it. One that will ring by then is left alone,
// also when it has just rung and nobody has come to it yet: packets, which come between two ticks
// and change nothing, cost no system call and put nothing off.
func (a *alarm) set(now time.Time) {
	t := a.wake
	if earliest := now.Add(minRest); t.Before(earliest) {
		t = earliest
	}
	if !a.at.IsZero() && !t.Before(a.at) {
		return
	}
	a.at = t
	a.timer.Reset(t.Sub(now))
}

// maxStep bounds the steps in which DNP halves begin: what all that share a machine do at the same moment holds up everything else there, a
// eureka above all, and the longer their period, the more of them will share one.
const maxStep = 25 * time.Millisecond

// inStep waits for the next multiple of the period, but at most of maxStep, on the machine's monotonic clock, and returns the
// time then. DNP halves that begin so send at the same moments: several packets come with one
// wake-up where neighbours share a machine, and nothing changes where they do not. Host halves have no neighbours: of those of many nodes on
// one machine each would only wait for all others.
func inStep(period time.Duration) time.Time {
	step := min(period, maxStep)
	time.Sleep(step - time.Duration(monotonic())%step)
	return time.Now()
}

// condition remembers whether something is wrong, so that it is logged when it begins and when it
// ends and not at every tick between.
type condition struct{ on bool }

func (c *condition) set(log *slog.Logger, what string, err error) {
	switch {
	case err != nil && !c.on:
		log.Warn(what+" fails", "err", err)
	case err == nil && c.on:
		log.Info(what + " works again")
	}
	c.on = err != nil
}

// closers close in the reverse order of their opening.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

func (c *closers) close() error {
	var errs []error
	for i := len(*c) - 1; i >= 0; i-- {
		errs = append(errs, (*c)[i]())
	}
	*c = nil
	return errors.Join(errs...)
}
