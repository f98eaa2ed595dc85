// Package half is the shared part of a node's halves: the configuration with the supervisors' changes, certificates
// and their renewal, the register page, the copy of a half's state, the loop that ticks a half, the files and sockets
// in the state directory, counters, and the self-test's probes.
//
// The halves themselves are packages host and dnp. Start reading at Common and Loop.
package half

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
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

// Common is the state that the two shells share.
type Common struct {
	Config   config.Agent // with the supervisors' changes: the place of a spare, the peers
	Periods  config.Periods
	Topo     *halfcore.Topology                 // torus and neighbours are those of the start
	Around   *atomic.Pointer[halfcore.Topology] // torus, links and, of the host half, neighbours are those of now
	Peers    *halfcore.PeersConfig
	Senders  *NetconsoleSenders
	Half     fault.Half
	Log      *slog.Logger
	Signer   *pki.Signer
	Verifier *pki.Verifier
	Trust    *trust
	Keeper   *storage.ReportLog
	Copy     *resumption
	epochs   *durable.Newest[fault.Epoch]
	held     time.Time          // until when reports wait for the disk to keep their epoch
	tests    string             // the self-test result last passed to the daemon
	unkept   string             // why reports are not kept, as last passed to the machine
	Manager  *sdnotify.Notifier // of a half that is a service of its own
	debug    bool               // the log takes debug lines
	Doubts   Repeats            // of this half in its own reads; guarded by the half's one mutex
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
	word, lost := storage.PeerOrders().Load(cfg.StateDir)
	known := PeersConfig(cfg, word, lost)
	known.Moves = StartedByDaemon(os.Environ())
	if cfg = WithPeers(cfg, word); cfg.Spare && !word.Placed {
		return Common{}, RefusedFile(fmt.Errorf("node %s is a spare without a place: lofamo-agent run waits until it gets "+
			"one", cfg.Node))
	}
	if err := CheckHalf(cfg, half); err != nil {
		return Common{}, err
	}
	around, err := TopologyOf(cfg)
	if err != nil {
		return Common{}, InvalidConfig(err)
	}
	c := Common{
		Config: cfg, Periods: periods, Half: half, Topo: around, Around: new(atomic.Pointer[halfcore.Topology]), Peers: known,
		Senders: NewNetconsoleSenders(),
		Log:     log.With("node", string(cfg.Node), "half", half.String()), debug: log.Enabled(context.Background(), slog.LevelDebug),
	}
	c.Around.Store(around)
	c.SetSenders(cfg)
	file, log := c.epochPath(), c.Log
	c.epochs = durable.NewNewest(func(e fault.Epoch) {
		if err := storage.SetEpoch(file, e); err != nil {
			log.Error("boot epoch not kept: the next start will ask the supervisors again", "err", err)
		}
	})
	if cfg.Platform == config.PlatformDPU && cfg.Window.Zero() {
		c.Log.Warn("platform dpu needs a window: without one the halves share a register file and so a kernel, and reports say shared-kernel")
		c.Config.Platform = config.PlatformSharedKernel
	}
	if lost != nil {
		c.Log.Error("stored peers lost: using the configuration until the supervisors send orders", "err", lost)
	}
	if c.Signer, err = LoadSigner(cfg, half); err != nil {
		return Common{}, RefusedFile(err)
	}
	registry := pki.NewRegistry()
	if c.Verifier, err = pki.LoadVerifier(cfg.TLS.CA, cfg.Cluster, pki.WithRegistry(registry)); err != nil {
		return Common{}, RefusedFile(err)
	}
	c.Trust = newTrust(&c, registry)
	if err := MakeStateDir(cfg.StateDir); err != nil {
		return Common{}, err
	}
	c.Trust.Renewals.Keep()
	ArmFailpoints(cfg, half.String(), c.Log)
	return c, nil
}

// MakeStateDir creates the state directory. It refuses a directory into which other users may put files that the
// halves would trust as their own: sockets, register file, boot epochs.
func MakeStateDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if m := info.Mode(); m.Perm()&0o022 != 0 {
		return fmt.Errorf("state directory %s: has mode %04o: others may write: want 0755 or less", path, m.Perm())
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

// Check finds the configuration errors that can be found without starting: fields, certificates and keys of the
// halves on this kernel, the gossip key.
func Check(cfg config.Agent) error {
	if err := cfg.Validate(); err != nil {
		return InvalidConfig(err)
	}
	var errs []error
	for _, h := range cfg.HalvesHere() {
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
		return RefusedFile(err)
	}
	return nil
}

// CheckHalf returns an error if a half, or both for 0, cannot run with this configuration: because the supervisors' stored order does not
// fit it, or because a window joins the half to the kernel of the other half. A DNP half refuses a netconsole.listen that would not receive
// its host's lines.
func CheckHalf(cfg config.Agent, half fault.Half) error {
	if err := checkOrder(cfg, half); err != nil {
		return err
	}
	here := cfg.HalvesHere()
	switch {
	case !cfg.Window.Zero() && half == fault.HalfDNP && len(here) > 1: // Validate does not know which half runs
		if err := cfg.ValidateHostWords(); err != nil {
			return InvalidConfig(err)
		}
		return nil
	case cfg.Window.Zero() || slices.Contains(here, half):
		return nil
	case half == 0:
		return &ConfigError{fmt.Errorf("window: this configuration is for one half: run it with --half %s", here[0])}
	}
	return &ConfigError{fmt.Errorf("window: tls has no certificate and key of the %s half: run that half on the other kernel", half)}
}

// checkOrder checks that the node's place is in its torus once the supervisors' stored order is applied. If half is 0, for both halves, a
// restart cannot help, because no order arrives while no half runs. If another daemon runs the other half, that half may receive a new
// order.
func checkOrder(cfg config.Agent, half fault.Half) error {
	word, _ := storage.PeerOrders().Load(cfg.StateDir) // lost: the configuration counts
	ordered := WithPeers(cfg, word)
	if word.Number == 0 || ordered.Spare && !word.Placed { // a spare's daemon waits for a place
		return nil
	}
	_, _, err := ordered.Topology()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("coord and dims with the supervisors' stored order %s: %w", storage.PeerOrders().Path(cfg.StateDir), err)
	if half != 0 {
		return RefusedFile(err)
	}
	return InvalidConfig(err)
}

// Origin returns the node and the half, as reports name them.
func (c *Common) Origin() fault.Origin { return fault.Origin{Node: c.Config.Node, Half: c.Half} }

// MaxHops returns the hop limit for this half's messages in the torus.
func (c *Common) MaxHops() uint8 { return c.Config.HopLimit() }

// StatePath returns the path of a file in the state directory.
func (c *Common) StatePath(name string) string { return filepath.Join(c.Config.StateDir, name) }

// SpoolPath returns the path of the file of a half's undelivered reports.
func SpoolPath(stateDir string, half fault.Half) string {
	return filepath.Join(stateDir, half.String()+spoolFileSuffix)
}

func (c *Common) epochPath() string { return EpochPath(c.Config.StateDir, c.Half) }

// EpochPath returns the path of the file with a half's boot epoch.
func EpochPath(stateDir string, h fault.Half) string {
	return filepath.Join(stateDir, h.String()+epochFileSuffix)
}

// nextEpoch counts this start. The caller must hold the half's lock on the register file.
func (c *Common) nextEpoch() (fault.Epoch, error) {
	e, garbled, err := storage.NextEpoch(c.epochPath())
	if garbled != nil {
		c.Log.Warn("boot epoch lost: the supervisors will supply the next one", "err", garbled)
	}
	return e, err
}

// OpenKeeper opens the half's spool, and returns the reports kept from earlier incarnations. The caller must hold the
// half's lock on the register file.
func (c *Common) OpenKeeper(cs *Closers) []servicenet.Kept {
	boot, err := storage.BootID()
	if err != nil {
		c.Log.Warn("kept reports will seem to be of an earlier boot", "err", err)
	}
	k, kept := storage.OpenReportLog(storage.ReportLogConfig{
		Path: SpoolPath(c.Config.StateDir, c.Half), Size: c.Config.Service.SpoolBytes, Origin: c.Origin(),
		Logger: c.Log, Boot: boot, Now: storage.SinceBoot, Copy: c.Copy.File, Rescued: c.Copy.rescued,
	})
	c.Copy.rescued = nil
	c.Keeper = k
	cs.Add(k.Close)
	return kept
}

// SpoolState returns the spool's state, and whether it has changed since the machine last saw it.
func (c *Common) SpoolState() (servicenet.SpoolState, bool) {
	why := c.Keeper.Why()
	if why == c.unkept {
		return servicenet.SpoolState{}, false
	}
	c.unkept = why
	return servicenet.SpoolState{Err: why}, true
}

// CarryOut executes a step's effects other than sending. The caller sends afterwards: if a report went out under an
// epoch that is then lost, another incarnation could reuse that epoch.
func (c *Common) CarryOut(e servicenet.SenderEffects, numbers storage.Numbers, p *Page) {
	if e.NewEpoch != 0 {
		c.keepEpoch(e.NewEpoch)
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
	for _, n := range e.SenderNotes {
		level := slog.LevelInfo
		if n.Warn {
			level = slog.LevelWarn
		}
		c.Log.Log(context.Background(), level, n.Text)
	}
}

// keepEpoch stores an epoch. It waits for the disk at most one write period, because the half holds its mutex and cannot write its word
// meanwhile. After that, MaySend is false until the disk has answered, but not for long.
func (c *Common) keepEpoch(e fault.Epoch) {
	if !c.epochs.Write(e, c.Periods.TWrite) {
		c.held = time.Now().Add(holdReports)
		c.Log.Warn("boot epoch not kept yet: the disk has not answered in time", "reports wait at most", holdReports)
	}
}

// holdReports bounds the wait of reports for the disk to keep their epoch. A half must not fall silent because its disk hangs. The bound is
// well below the time after which the outbox finds the service network dead.
const holdReports = 500 * time.Millisecond

// MaySend reports whether reports may leave: the disk has kept their epoch or refused it, or has hung for holdReports. The outbox repeats
// reports that are not sent.
func (c *Common) MaySend() bool { return c.epochs.Flush(0) || !time.Now().Before(c.held) }

// maxStep bounds the steps in which DNP halves begin. Simultaneous work of all halves on a machine delays everything
// else there, above all a eureka, and the longer their period, the more halves share one machine.
const maxStep = 25 * time.Millisecond

// InStep waits for the next multiple of the period, or of maxStep if that is shorter, on the machine's monotonic
// clock, and returns the time then. DNP halves that begin so send at the same moments: where neighbours share a
// machine, several packets come with one wake-up, and elsewhere nothing changes. Host halves do not use it, because
// they have no neighbours: on a machine with many nodes each would only wait for all others.
func InStep(period time.Duration) time.Time {
	step := min(period, maxStep)
	time.Sleep(step - time.Duration(Monotonic())%step)
	return time.Now()
}

// Condition tracks a failure, so that it is logged when it begins and when it ends and not at every tick between.
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
func (c *Common) SpoolStatus() local.SpoolStatus {
	s := c.Keeper.Status()
	return local.SpoolStatus{
		Path: c.Keeper.Path(), Capacity: c.Keeper.Size(), Used: s.Bytes, Records: s.Depth, Lost: s.Lost, Error: s.Err,
	}
}
