package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/netlab"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

var windowCuts = flag.Int("window.cuts", 3, "how often TestWindowCutsAccuseNoHalf cuts the window of a node")

// apart is the node whose two halves have a daemon, a network namespace, a state directory and a boot ID each.
const apart = "n1-0-0"

// clockLead is how far the monotonic clock of apart's host half is ahead of its DNP half's clock, in seconds: one day.
const clockLead = "86400"

// window is a cluster in which a window joins the two halves of one node.
type window struct {
	*netlab.Lab
	card   config.Agent // of the DNP half
	config string       // its file
	daemon *exec.Cmd    // of the DNP half; nil: it does not run
	argv   func() []string
}

// windowCluster starts a ring of three nodes, of which apart has a window.
func windowCluster(t *testing.T, restart string) *window {
	t.Helper()
	if missing := netlab.Missing(); missing != "" {
		requirements.Missing(t, "network namespaces: missing: %s", missing)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	n, err := netlab.Connect(ctx, netlab.Shape{Dims: dims, Supervisors: 1, Cards: []fault.NodeID{apart}})
	if err != nil {
		t.Fatal(err)
	}
	w := &window{}
	host, card := netlab.WindowAddresses(0)
	divide := func(a *config.Agent) {
		if a.Node != apart {
			return
		}
		dir := filepath.Dir(a.StateDir)
		w.card, w.config = *a, filepath.Join(dir, "card.yaml")
		w.card.StateDir = filepath.Join(dir, "card")
		a.Window = config.WindowConfig{Listen: host.String(), Peer: card.String(), Interface: netlab.WindowInterface}
		w.card.Window = config.WindowConfig{Listen: card.String(), Peer: host.String(), Interface: netlab.WindowInterface}
		w.card.Netconsole.Listen = netip.AddrPortFrom(card.Addr(), 6666).String()
		a.TLS.DNPCert, a.TLS.DNPKey, w.card.TLS.HostCert, w.card.TLS.HostKey = "", "", "", ""
	}
	w.argv = func() []string {
		boot := filepath.Join(filepath.Dir(w.config), "boot_id")
		const script = `mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`
		return n.Command(netlab.Card(apart), []string{"sh", "-c", script, boot, filepath.Join(binaries, "lofamo-agent"), "run", "--half", "dnp",
			"--config", w.config, "--restart=" + restart})
	}
	w.Lab, err = netlab.StartOn(ctx, n, cluster.Options{
		Dims: dims, Supervisors: 1, BinDir: binaries, Periods: patient(), Restart: restart, Agent: divide,
		Command: func(member string, argv []string) []string {
			if member != apart {
				return n.Command(member, argv)
			}
			if w.daemon == nil {
				if err := w.startCard(); err != nil {
					t.Error(err)
				}
			}
			clock := []string{requirements.Program(t, "util-linux", "unshare"), "--time", "--monotonic", clockLead}
			return n.Command(member, append(append(clock, argv...), "--half", "host"))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		dir, err := w.CloseAndKeep()
		t.Logf("the cluster's directory with its logs is kept: %s, %v", dir, err)
	})
	return w
}

// startCard starts the daemon of the DNP half.
func (w *window) startCard() error {
	dir := filepath.Dir(w.config)
	b, err := yaml.Marshal(w.card)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, "card.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := errors.Join(os.WriteFile(w.config, b, 0o600),
		os.WriteFile(filepath.Join(dir, "boot_id"), []byte("6b4cbd0e-7a35-4d3b-9a4f-0c8f6b1f2a11\n"), 0o600)); err != nil {
		return err
	}
	argv := w.argv()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, &syscall.SysProcAttr{Setsid: true}
	w.daemon = cmd
	return cmd.Start()
}

// side is a half and its daemon: all that runs on one kernel.
type side struct {
	half   fault.Half
	daemon int // 0: it has ended
	dir    string
}

// killHost ends all processes of the host's side, so that nothing starts them again.
func (w *window) killHost(t *testing.T) {
	t.Helper()
	if err := w.Cluster.KillRun(t.Context(), apart); err != nil {
		t.Fatal(err)
	}
	s := w.hostSide(t)
	s.daemon = 0
	s.signal(t, syscall.SIGKILL)
}

func (w *window) hostSide(t *testing.T) side {
	t.Helper()
	n, err := w.Cluster.Node(apart)
	if err != nil {
		t.Fatal(err)
	}
	return side{fault.HalfHost, n.RunPID, n.StateDir}
}

func (w *window) cardSide() side { return side{fault.HalfDNP, w.daemon.Process.Pid, w.card.StateDir} }

// process returns the process of the half.
func (s side) process(t *testing.T) int {
	t.Helper()
	h, held, err := regfile.HolderOf(filepath.Join(s.dir, "registers"), s.half)
	if err != nil || !held {
		t.Fatalf("the process of the %s half: held %t, %v", s.half, held, err)
	}
	return h.PID
}

// signal sends a signal to the daemon first, so that it restarts nothing, and then to its half.
func (s side) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	for _, pid := range []int{s.daemon, s.process(t)} {
		if pid == 0 {
			continue
		}
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatalf("signal %d to process %d of the %s side: %v", sig, pid, s.half, err)
		}
	}
}

// cut cuts the window silently, and returns the time just before.
func (w *window) cut(t *testing.T) int64 {
	t.Helper()
	at := cluster.Monotonic()
	if err := w.Cut(apart, netlab.WindowInterface, netlab.Both); err != nil {
		t.Fatal(err)
	}
	return at
}

func (w *window) join(t *testing.T) {
	t.Helper()
	if err := errors.Join(w.Heal(apart, netlab.WindowInterface), w.CarrierUp(apart, netlab.WindowInterface)); err != nil {
		t.Fatal(err)
	}
}

// clocksDiffer checks that the daemon and the half of apart's host have the same clock, and that it is not the test's.
func (w *window) clocksDiffer(t *testing.T) {
	t.Helper()
	s := w.hostSide(t)
	clock := func(process string) string {
		ns, err := os.Readlink("/proc/" + process + "/ns/time")
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	if daemon, half := clock(fmt.Sprint(s.daemon)), clock(fmt.Sprint(s.process(t))); daemon != half || daemon == clock("self") {
		t.Fatalf("time namespaces: daemon %s, half %s, test %s: want the same one for the first two", daemon, half, clock("self"))
	}
}

// begin waits for a map without faults, and begins a trial.
func (w *window) begin(t *testing.T) trial {
	t.Helper()
	tr := begin(t, w.Lab.Lab)
	tr.settled()
	tr.mark = w.Mark()
	return tr
}

// spares checks that since the trial began no component became FAILED except those named, and no other node became anything but
// NORMAL.
func (t trial) spares(components ...string) {
	t.Helper()
	for _, s := range t.Since(t.mark) {
		follows := strings.HasPrefix(s.GetComponent(), "link/") && slices.Contains(components, "link")
		if s.GetTo() == failed && s.GetComponent() != "" && !follows && (s.GetNode() != apart || !slices.Contains(components, s.GetComponent())) {
			t.Errorf("accused: %s", s)
		}
	}
	t.othersWereSpared(apart)
}

// hostBits returns which neighbours of apart have the neighbour-host bit of its direction raised.
func (w *window) hostBits(t *testing.T) (out []string) {
	t.Helper()
	for id, dir := range map[string]grid.Direction{"n0-0-0": grid.XPlus, "n2-0-0": grid.XMinus} {
		n, err := w.Cluster.Node(id)
		if err != nil {
			t.Fatal(err)
		}
		f, err := regfile.OpenReadOnly(w.Cluster.RegisterFile(n))
		if err != nil {
			t.Fatal(err)
		}
		word, _, err := f.LoadDNP()
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		if word.NeighbourHostFailed[dir.Index()] {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// TestWindowOfTwoKernels breaks the parts of a node with two kernels one after the other. The map names the broken part, and no other.
func TestWindowOfTwoKernels(t *testing.T) {
	t.Parallel()
	w := windowCluster(t, "never")
	w.clocksDiffer(t)
	cuts := []struct {
		name string
		cut  func(*testing.T)
	}{
		{"all packets lost", func(t *testing.T) { w.cut(t) }},
		{"cable pulled", func(t *testing.T) {
			if err := w.CarrierDown(apart, netlab.WindowInterface); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, tc := range cuts {
		t.Run("window cut: "+tc.name, func(t *testing.T) {
			tr := w.begin(t)
			tc.cut(t)
			tr.becomes(apart, "bus", failed)
			tr.quiet(apart)
			if bits := w.hostBits(t); len(bits) > 0 {
				t.Errorf("the neighbour-host bit of a living host is raised at %v", bits)
			}
			w.join(t)
			tr.becomes(apart, "bus", normal)
			tr.settled()
			tr.spares("bus")
		})
	}
	t.Run("host side killed", func(t *testing.T) {
		tr := w.begin(t)
		w.killHost(t)
		tr.hostDead(w)
		if err := w.Cluster.StartRun(apart); err != nil {
			t.Fatal(err)
		}
		tr.settled()
		tr.spares("host")
	})
	t.Run("host side silent", func(t *testing.T) {
		tr := w.begin(t)
		s := w.hostSide(t)
		s.signal(t, syscall.SIGSTOP)
		tr.hostDead(w)
		s.signal(t, syscall.SIGCONT)
		tr.settled()
		tr.spares("host")
	})
	t.Run("hosts of both neighbours killed", func(t *testing.T) { // their DNP halves can report only through apart's window
		tr := w.begin(t)
		neighbours := []string{"n0-0-0", "n2-0-0"}
		for _, n := range neighbours {
			tr.inject(n, simple(cluster.KillHost))
		}
		for _, n := range neighbours {
			tr.becomes(n, "host", failed)
			tr.is(n, sick, lofamov1.Cause_HOST)
		}
		for _, n := range neighbours {
			if err := w.Cluster.Heal(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}
		tr.settled()
		tr.neverFailed()
		tr.othersWereSpared(neighbours...)
	})
	t.Run("DNP side killed", func(t *testing.T) {
		tr := w.begin(t)
		w.cardSide().signal(t, syscall.SIGKILL)
		_ = w.daemon.Wait()
		tr.becomes(apart, "dnp", failed)
		tr.is(apart, sick, lofamov1.Cause_DNP)
		if err := w.startCard(); err != nil {
			t.Fatal(err)
		}
		tr.settled()
		tr.spares("dnp", "link")
	})
	t.Run("both sides killed", func(t *testing.T) {
		tr := w.begin(t)
		w.killHost(t)
		w.cardSide().signal(t, syscall.SIGKILL)
		_ = w.daemon.Wait()
		tr.becomes(apart, "node", failed)
		tr.is(apart, failed, lofamov1.Cause_NODE)
		if err := errors.Join(w.startCard(), w.Cluster.StartRun(apart)); err != nil {
			t.Fatal(err)
		}
		tr.settled()
		tr.spares("node", "host", "dnp", "link")
	})
	t.Run("DNP side silent", func(t *testing.T) {
		tr := w.begin(t)
		s := w.cardSide()
		s.signal(t, syscall.SIGSTOP)
		tr.becomes(apart, "dnp", failed)
		tr.is(apart, sick, lofamov1.Cause_DNP)
		s.signal(t, syscall.SIGCONT)
		tr.settled()
		tr.spares("dnp", "link")
	})
	t.Run("host kernel panics", w.hostPanics)
}

// hostPanics makes the host's side as silent as a kernel that has died, and sends the last words of that kernel.
func (w *window) hostPanics(t *testing.T) {
	tr := w.begin(t)
	s := w.hostSide(t)
	s.signal(t, syscall.SIGSTOP)
	w.panics(t)
	tr.hostDead(w)
	tr.knowsPanic()
	s.signal(t, syscall.SIGCONT)
	tr.settled()
	tr.spares("host")
}

// panicLine is the last line of a dying kernel.
const panicLine = "Kernel panic - not syncing: Fatal exception in interrupt"

// panics sends the last words of a kernel from the host's network namespace to the card's receiver, as netconsole does.
func (w *window) panics(t *testing.T) {
	t.Helper()
	to := netip.MustParseAddrPort(w.card.Netconsole.Listen)
	send := fmt.Sprintf("echo '[  812.004711] %s' >/dev/udp/%s/%d", panicLine, to.Addr(), to.Port())
	argv := w.Command(apart, []string{requirements.Program(t, "bash", "bash"), "-c", send})
	if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", send, err, out)
	}
}

// knowsPanic waits until the map has the last words of the host's kernel, as its card received them, and the proof that it is dead.
func (t trial) knowsPanic() {
	t.Helper()
	by := apart + "/dnp"
	eventually(t.T, "the last words of the dead host, by its card", func() bool {
		n := t.node(apart)
		words := n.GetHostHealth().GetLastWords()
		return len(words) == 1 && words[0].GetLine() == panicLine && words[0].GetReceivedBy() == by &&
			n.GetHostKernel().GetDead() == lofamov1.KernelDead_KERNEL_DEAD_YES
	})
	for _, args := range [][]string{{"get", "node", apart}, {"explain", apart, "host"}} {
		answered(t.T, "lofamoctl "+strings.Join(args, " "), func() (out string, err error) { // a follower may answer without the leader
			if out = t.lofamoctl(args...); !strings.Contains(out, panicLine) || !strings.Contains(out, by+" received its panic") {
				err = fmt.Errorf("it does not show the panic:\n%s", out)
			}
			return out, err
		})
	}
}

// hostDead waits for the death of the host: in the map, by a report through the torus, and in the neighbours' registers.
func (t trial) hostDead(w *window) {
	t.Helper()
	if s := t.becomes(apart, "host", failed); s.GetPath() != torus {
		t.Errorf("the host's death is known by %s, want TORUS", s.GetPath())
	}
	n := t.is(apart, sick, lofamov1.Cause_HOST)
	if n.GetPlatform() != lofamov1.Platform_DPU {
		t.Errorf("platform %s, want DPU", n.GetPlatform())
	}
	eventually(t.T, "the neighbour-host bit in both neighbours' registers", func() bool { return len(w.hostBits(t.T)) == 2 })
}

// TestWindowCutsAccuseNoHalf restarts both halves of a node with two kernels in good order, and then cuts its window again and again:
// each time the bus becomes FAILED, and neither a half nor the node.
func TestWindowCutsAccuseNoHalf(t *testing.T) {
	t.Parallel()
	w := windowCluster(t, "always")
	for _, tc := range []struct{ name, config string }{
		{"DNP half restarted in good order", w.config},
		{"host half restarted in good order", filepath.Join(filepath.Dir(w.config), "agent.yaml")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := w.begin(t)
			if out, err := exec.CommandContext(t.Context(), filepath.Join(binaries, "lofamo-agent"), "restart", "--config",
				tc.config).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			tr.settled()
			tr.spares()
		})
	}
	if *windowCuts == 0 {
		return
	}
	var took []time.Duration
	raised, accused := 0, 0
	for range *windowCuts {
		tr := w.begin(t)
		at := w.cut(t)
		s := tr.becomes(apart, "bus", failed)
		took = append(took, time.Duration(s.At-at))
		if len(w.hostBits(t)) > 0 {
			raised++
		}
		w.join(t)
		tr.becomes(apart, "bus", normal)
		for _, s := range w.Since(tr.mark) {
			if s.GetTo() == failed && s.GetComponent() != "" && s.GetComponent() != "bus" {
				accused++
				t.Errorf("accused: %s", s)
			}
		}
	}
	if raised > 0 {
		t.Errorf("%d of %d cuts raised the bit of a living host in a neighbour's registers", raised, len(took))
	}
	slices.Sort(took)
	at := func(share float64) string {
		return took[int(share*float64(len(took)-1))].Round(time.Millisecond).String()
	}
	p, err := w.Cluster.Periods()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d window cuts, %d accusations of a half or a node; from the cut to bus FAILED at a watcher: median %s, p99 %s, max %s "+
		"(ring of 3, namespaces, tRead %s, %d misses, challenge %s)", len(took), accused, at(0.5), at(0.99), at(1), p.TRead, p.ReadMisses,
		p.ChallengeHalf)
}
