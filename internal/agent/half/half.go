// Package half is what both halves of a node share: the configuration as the supervisors changed it, certificates and their renewal, the register
// page, the copy of a half's state, the files and sockets in the state directory, counters, and the self-test's probes.
//
// The halves themselves are packages host and dnp. Start reading at Common.
package half

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

	"github.com/lofamo/lofamo/internal/agent/delivery"
	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/local/status"
	"github.com/lofamo/lofamo/internal/agent/peerfile"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/agent/storage/backup"
	"github.com/lofamo/lofamo/internal/agent/topo"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/sdnotify"
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

// Common is what the two shells share.
type Common struct {
	Config   config.Agent // as the supervisors have told it: the place of a spare, the peers
	Periods  config.Periods
	Topo     *topo.Map                 // names of neighbours are those of the start
	Around   *atomic.Pointer[topo.Map] // names of neighbours are those of now
	Peers    *dnpcore.PeersConfig
	Half     fault.Half
	Log      *slog.Logger
	Signer   *pki.Signer
	Verifier *pki.Verifier
	Trust    *trust
	Keeper   *storage.ReportLog
	Copy     *resumption
	tests    string             // what the daemon was told of the self-test
	unkept   string             // why reports are not kept, as the machine was told
	Manager  *sdnotify.Notifier // of a half that is a service of its own
	debug    bool               // the log takes debug lines
}

// Prepare checks the configuration and loads the half's keys.
func Prepare(cfg config.Agent, half fault.Half, log *slog.Logger) (Common, error) {
	if err := cfg.Validate(); err != nil {
		return Common{}, InvalidConfig(err)
	}
	periods, err := cfg.Timing()
	if err != nil {
		return Common{}, InvalidConfig(err)
	}
	word, lost := peerfile.Load(filepath.Join(cfg.StateDir, peerfile.Name))
	known := PeersConfig(cfg, word, lost)
	if cfg = WithPeers(cfg, word); cfg.Spare && !word.Placed {
		return Common{}, &ConfigError{fmt.Errorf("node %s is a spare without a place: lofamo-agent run waits until it is told one", cfg.Node)}
	}
	around, err := TopologyOf(cfg)
	if err != nil {
		return Common{}, InvalidConfig(err)
	}
	c := Common{
		Config: cfg, Periods: periods, Half: half, Topo: around, Around: new(atomic.Pointer[topo.Map]), Peers: known,
		Log: log.With("node", string(cfg.Node), "half", half.String()), debug: log.Enabled(context.Background(), slog.LevelDebug),
	}
	c.Around.Store(around)
	if cfg.Platform == config.PlatformDPU {
		c.Log.Warn("platform dpu is not available: the halves share a register file and so a kernel; reports and metrics say shared-kernel")
		c.Config.Platform = config.PlatformSharedKernel
	}
	if lost != nil {
		c.Log.Error("what was told of the peers is lost: the configuration stands until the supervisors have spoken", "err", lost)
	}
	if c.Signer, err = LoadSigner(cfg, half); err != nil {
		return Common{}, &ConfigError{err}
	}
	registry := pki.NewRegistry()
	if c.Verifier, err = pki.LoadVerifier(cfg.TLS.CA, cfg.Cluster, pki.WithRegistry(registry)); err != nil {
		return Common{}, &ConfigError{err}
	}
	c.Trust = newTrust(&c, registry)
	if err := MakeStateDir(cfg.StateDir); err != nil {
		return Common{}, err
	}
	c.Trust.Renewals.Keep()
	ArmFailpoints(cfg, half.String(), c.Log)
	return c, nil
}

// MakeStateDir makes the state directory, or refuses one into which others may put what the halves
// would take for their own: sockets, register file, boot epochs.
func MakeStateDir(path string) error {
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

// LoadSigner reads the certificate and the key of one half.
func LoadSigner(cfg config.Agent, half fault.Half) (*pki.Signer, error) {
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
		return InvalidConfig(err)
	}
	var errs []error
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		_, err := LoadSigner(cfg, h)
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

// Origin returns the node and the half, as reports name them.
func (c *Common) Origin() fault.Origin { return fault.Origin{Node: c.Config.Node, Half: c.Half} }

// MaxHops is what a message of this half may make in the torus.
func (c *Common) MaxHops() uint8 { return c.Config.HopLimit() }

// StatePath returns the path of a file in the state directory.
func (c *Common) StatePath(name string) string { return filepath.Join(c.Config.StateDir, name) }

func (c *Common) epochPath() string { return c.StatePath(c.Half.String() + epochFileSuffix) }

// nextEpoch counts this start. It must be called under the half's lock on the register file.
func (c *Common) nextEpoch() (fault.Epoch, error) {
	e, garbled, err := storage.NextEpoch(c.epochPath())
	if garbled != nil {
		c.Log.Warn("boot epoch lost: the supervisors will say where to go on", "err", garbled)
	}
	return e, err
}

// OpenKeeper opens the half's spool, and returns what it kept of earlier lives. It must be called under
// the half's lock on the register file.
func (c *Common) OpenKeeper(cs *Closers) []servicenet.Kept {
	boot, err := storage.BootID()
	if err != nil {
		c.Log.Warn("kept reports will seem to be of an earlier boot", "err", err)
	}
	k, kept := storage.OpenReportLog(storage.ReportLogConfig{
		Path: c.StatePath(c.Half.String() + spoolFileSuffix), Size: c.Config.Service.SpoolBytes, Origin: c.Origin(),
		Logger: c.Log, Boot: boot, Now: backup.SinceBoot, Copy: c.Copy.File, Rescued: c.Copy.rescued,
	})
	c.Copy.rescued = nil
	c.Keeper = k
	cs.Add(k.Close)
	return kept
}

// SpoolState says whether the machine must be told of the spool, and what.
func (c *Common) SpoolState() (servicenet.SpoolState, bool) {
	why := c.Keeper.Why()
	if why == c.unkept {
		return servicenet.SpoolState{}, false
	}
	c.unkept = why
	return servicenet.SpoolState{Err: why}, true
}

// CarryOut does what a step asks for besides sending: before that, for a report that is sent under an
// epoch which is lost would come to be another's.
func (c *Common) CarryOut(e delivery.Effects, numbers backup.Numbers, p *Page) {
	if e.NewEpoch != 0 {
		if err := storage.SetEpoch(c.epochPath(), e.NewEpoch); err != nil {
			c.Log.Error("boot epoch not kept: the next start will ask the supervisors again", "err", err)
		}
		p.SetEpoch(e.NewEpoch)
	}
	c.storeNumbers(numbers) // before the reports: one with a number that was not given is of a later life
	if failpoint.Hit(failpoint.SpoolKeep) == failpoint.Drop {
		c.Keeper.KeepCopied(e.Keep)
	} else {
		c.Keeper.Keep(e.Keep)
	}
	c.traceReports(e)
	c.Keeper.Forget(e.Forget)
	for _, n := range e.Told {
		level := slog.LevelInfo
		if n.Warn {
			level = slog.LevelWarn
		}
		c.Log.Log(context.Background(), level, n.Text)
	}
}

// Alarm is the one timer of a half. Its methods are called under the half's mutex.
type Alarm struct {
	Timer *time.Timer
	Wake  time.Time // what the machine wanted at its last step
	at    time.Time // when the timer rings; zero: it has rung, and that is being dealt with
}

// NewAlarm returns an alarm that rings in an hour unless it is set.
func NewAlarm() *Alarm { return &Alarm{Timer: time.NewTimer(time.Hour)} }

// minRest is what a half rests at least from one ring to the next. Machines wake some milliseconds
// from now; one that wanted to be woken in the past, time and again, must not spin.
const minRest = 500 * time.Microsecond

// Rang notes that the timer has rung; what follows sets it anew.
func (a *Alarm) Rang() { a.at = time.Time{} }

// Set makes the timer ring when the machine wants it. One that will ring by then is left alone,
// also when it has just rung and nobody has come to it yet: packets, which come between two ticks
// and change nothing, cost no system call and put nothing off.
func (a *Alarm) Set(now time.Time) {
	t := a.Wake
	if earliest := now.Add(minRest); t.Before(earliest) {
		t = earliest
	}
	if !a.at.IsZero() && !t.Before(a.at) {
		return
	}
	a.at = t
	a.Timer.Reset(t.Sub(now))
}

// maxStep bounds the steps in which DNP halves begin: what all that share a machine do at the same moment holds up everything else there, a
// eureka above all, and the longer their period, the more of them will share one.
const maxStep = 25 * time.Millisecond

// InStep waits for the next multiple of the period, but at most of maxStep, on the machine's monotonic clock, and returns the
// time then. DNP halves that begin so send at the same moments: several packets come with one
// wake-up where neighbours share a machine, and nothing changes where they do not. Host halves have no neighbours: of those of many nodes on
// one machine each would only wait for all others.
func InStep(period time.Duration) time.Time {
	step := min(period, maxStep)
	time.Sleep(step - time.Duration(Monotonic())%step)
	return time.Now()
}

// Condition remembers whether something is wrong, so that it is logged when it begins and when it
// ends and not at every tick between.
type Condition struct{ On bool }

// Set logs the begin and the end of a failure: an error begins it, nil ends it.
func (c *Condition) Set(log *slog.Logger, what string, err error) {
	switch {
	case err != nil && !c.On:
		log.Warn(what+" fails", "err", err)
	case err == nil && c.On:
		log.Info(what + " works again")
	}
	c.On = err != nil
}

// Closers close in the reverse order of their opening.
type Closers []func() error

// Add appends a clean-up.
func (c *Closers) Add(f func() error) { *c = append(*c, f) }

// Close runs all clean-ups, the last one first, and joins their errors.
func (c *Closers) Close() error {
	var errs []error
	for i := len(*c) - 1; i >= 0; i-- {
		errs = append(errs, (*c)[i]())
	}
	*c = nil
	return errors.Join(errs...)
}

// SpoolStatus returns the state of the spool of unacknowledged reports.
func (c *Common) SpoolStatus() status.Spool {
	s := c.Keeper.Status()
	return status.Spool{
		Path: c.Keeper.Path(), Capacity: c.Keeper.Size(), Used: s.Bytes, Records: s.Depth, Lost: s.Lost, Error: s.Err,
	}
}
