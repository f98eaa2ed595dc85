package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// floodRates are the datagrams per second of TestFloodOfStrangersHarmsNoNode; -flood.rates=10000,50000,200000 makes the
// published table.
var floodRates = flag.String("flood.rates", "20000", "datagrams per second of a flood from strangers, separated by commas")

// floodTime is how long each flood lasts.
var floodTime = flag.Duration("flood.time", 5*time.Second, "how long each flood from strangers lasts")

// floodDefault has the local cluster use the default periods, for a quiet machine.
var floodDefault = flag.Bool("flood.default", false, "the local cluster of the flood uses the default periods: wants a quiet machine")

func floodPeriods() *config.PeriodsOverride {
	if *floodDefault {
		return nil
	}
	return patient()
}

// flooder as the first argument makes this program send small datagrams: rate, duration, targets.
const flooder = "flood"

// runFlooder sends until the time is over, to each target in turn, and prints how many it has sent.
func runFlooder(args []string) error {
	rate, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	lasts, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	var to []syscall.SockaddrInet4
	for _, a := range args[2:] {
		at, err := netip.ParseAddrPort(a)
		if err != nil {
			return err
		}
		to = append(to, syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	// The kernel cuts the data of one call into datagrams (udp(7), UDP_SEGMENT): with one call for each datagram, this
	// sender cannot reach 200,000 per second.
	if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, floodSize); err != nil {
		return fmt.Errorf("set UDP_SEGMENT: %w", err)
	}
	datagrams := bytes.Repeat([]byte("a small datagram"), floodBurst)
	begin, sent := time.Now(), 0
	for turn := 0; time.Since(begin) < lasts; {
		for due := int(time.Since(begin).Seconds() * float64(rate)); sent < due && time.Since(begin) < lasts; turn++ {
			n := min(due-sent, floodBurst)
			_ = syscall.Sendto(fd, datagrams[:n*floodSize], 0, &to[turn%len(to)]) // fails for a full buffer: that is the flood's own loss
			sent += n
		}
		time.Sleep(time.Millisecond)
	}
	fmt.Printf("%d %d\n", sent, int(time.Since(begin).Milliseconds()))
	return nil
}

const (
	floodSize  = 16 // bytes of a datagram
	floodBurst = 32 // datagrams of one call, to one target
)

// flood runs a flooder to its end, by a command that may lead into another namespace, and returns how many datagrams
// per second it has sent.
func flood(ctx context.Context, wrap func([]string) []string, rate int, lasts time.Duration, targets []string) (float64, error) {
	argv := append([]string{os.Args[0], flooder, strconv.Itoa(rate), lasts.String()}, targets...)
	if wrap != nil {
		argv = wrap(argv)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("flooder: %w: %s", err, stderr.String())
	}
	var sent, ms float64
	if _, err := fmt.Sscan(string(out), &sent, &ms); err != nil {
		return 0, fmt.Errorf("flooder: %q: %w", out, err)
	}
	return sent / ms * 1000, nil
}

// udpPorts are all UDP addresses of a node.
func (t trial) udpPorts(node string) []string {
	t.Helper()
	cfg, err := config.LoadAgent(filepath.Join(t.Cluster.Dir(), "nodes", node, "agent.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{cfg.Service.Listen}
	if cfg.Service.GossipListen != "" {
		out = append(out, cfg.Service.GossipListen)
	}
	for _, link := range cfg.Links {
		out = append(out, link.Local)
	}
	for _, a := range out {
		at, err := net.ResolveUDPAddr("udp4", a)
		if err != nil || at.Port == 0 {
			t.Fatalf("address %q: %v", a, err)
		}
	}
	return out
}

// linksOf returns the directions of a node's links.
func (t trial) linksOf(node string) (out []grid.Direction) {
	t.Helper()
	for _, c := range t.node(node).GetComponents() {
		kind, err := fault.ParseComponent(c.GetName())
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := kind.LinkDirection(); ok {
			out = append(out, d)
		}
	}
	return out
}

// harmed are the changes to SICK or FAILED since a mark, those of self-tests and sensors of the machine included.
func (t trial) harmed(mark int) (out []string) {
	for _, s := range t.Since(mark) {
		if s.GetTo() == failed || s.GetTo() == sick {
			out = append(out, s.String())
		}
	}
	return out
}

// supervisorsTotal adds the metrics of all supervisors.
func (t trial) supervisorsTotal() metrics {
	t.Helper()
	sum := metrics{}
	for _, s := range t.Cluster.Info().Supervisors {
		for k, v := range scrape(t.T, s.HTTP) {
			sum[k] += v
		}
	}
	return sum
}

// slowest returns the upper bound of a histogram's highest bucket with new counts since before, and the total of new
// counts.
func slowest(before, after metrics, name string) (bound, count float64) {
	bounds := map[float64]float64{}
	for sample, v := range after {
		labels, ok := strings.CutPrefix(sample, name+"_bucket{")
		if !ok {
			continue
		}
		_, le, _ := strings.Cut(labels, `le="`)
		le, _, _ = strings.Cut(le, `"`)
		if at, err := strconv.ParseFloat(le, 64); err == nil {
			bounds[at] += v - before[sample]
		}
	}
	bound, count = math.Inf(1), bounds[math.Inf(1)]
	for at, n := range bounds {
		if n >= count {
			bound = min(bound, at)
		}
	}
	return bound, count
}

// digestAge samples the age of the newest digest of a node's host half in the map until ctx ends, and returns the 99th
// percentile.
func (t trial) digestAge(ctx context.Context, node string) time.Duration {
	var ages []time.Duration
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			if len(ages) == 0 {
				t.Fatalf("no digest of %s is in the map", node)
			}
			slices.Sort(ages)
			return ages[len(ages)*99/100]
		case <-tick.C:
			if n, err := t.Client.GetNode(ctx, node); err == nil && n.GetDeliveryAge() != nil {
				ages = append(ages, n.GetDeliveryAge().AsDuration())
			}
		}
	}
}

// quietly measures the age of digests without a flood.
func (t trial) quietly(node string) time.Duration {
	ctx, cancel := context.WithTimeout(t.Context(), *floodTime)
	defer cancel()
	return t.digestAge(ctx, node)
}

// flooded measures the age of digests during a flood, and returns the real rate of the flood.
func (t trial) flooded(wrap func([]string) []string, rate int, targets []string) (age time.Duration, real float64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var err error
	go func() {
		defer cancel()
		real, err = flood(t.Context(), wrap, rate, *floodTime, targets)
	}()
	age = t.digestAge(ctx, flooderVictim)
	if err != nil {
		t.Fatal(err)
	}
	return age, real
}

// flooderVictim is the node that is flooded.
const flooderVictim = "n0-0-0"

// measurements is how often a rate is measured: a single measurement on a machine that is busy with other work proves
// nothing.
const measurements = 3

// standstill is the shortest pause of the machine that excuses one measurement: halves that do not run miss heartbeats,
// challenges and their own periods, flood or not.
const standstill = 100 * time.Millisecond

// watchMachine measures the longest time for which this process did not run, until the returned function is called.
func watchMachine() (longest func() time.Duration) {
	stop, out := make(chan struct{}), make(chan time.Duration)
	go func() {
		var most time.Duration
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-stop:
				out <- most
				return
			case <-tick.C:
			}
			now := time.Now()
			most, last = max(most, now.Sub(last)), now
		}
	}()
	return func() time.Duration { close(stop); return <-out }
}

// floodAt floods every UDP port of the victim at a rate. Nothing becomes SICK or FAILED, and the 99th percentile of the
// age of the victim's digests at most doubles, compared with a quiet time just before. An age below a digest's period
// counts as that period.
func (t trial) floodAt(sender string, wrap func([]string) []string, rate int, targets []string, period time.Duration) {
	t.Helper()
	for try := 1; ; try++ {
		longest := watchMachine()
		mark, quiet := t.Mark(), t.quietly(flooderVictim)
		age, real := t.flooded(wrap, rate, targets)
		harmed := t.harmed(mark)
		if stood := longest(); len(harmed) > 0 && stood >= standstill && try < measurements {
			t.Logf("the machine stood still for %s: measured once more; meanwhile %q", stood, harmed)
			t.settled()
			continue
		}
		t.Logf("sender %s, wanted %d/s, sent %.0f/s to %d ports: %d changes to SICK or FAILED; 99 %% of the time the newest digest is at most "+
			"%s old, %s without the flood",
			sender, rate, real, len(targets), len(harmed), age.Round(time.Millisecond), quiet.Round(time.Millisecond))
		for _, h := range harmed {
			t.Errorf("at %d datagrams in a second: %s", rate, h)
		}
		if most := 2 * max(quiet, period); age <= most {
			return
		} else if try == measurements {
			t.Errorf("at %d datagrams in a second digests are %s old, want at most %s, in each of %d measurements", rate, age, most, try)
			return
		}
	}
}

// floods sends floods of all rates to every UDP port of n0-0-0, and checks that no node is harmed and that a fault
// during the flood is detected.
func (t trial) floods(sender string, wrap func([]string) []string, targets []string) {
	t.Helper()
	periods, err := t.Cluster.Periods()
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.SplitSeq(*floodRates, ",") {
		rate, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("-flood.rates: %q: want numbers separated by commas", *floodRates)
		}
		t.floodAt(sender, wrap, rate, targets, periods.DigestPeriod)
		t.accused(wrap, rate, targets, periods)
	}
	done := make(chan error, 1)
	go func() {
		_, err := flood(t.Context(), wrap, 20_000, *floodTime, targets)
		done <- err
	}()
	t.inject("0,0,0", sensor("temperature", 110))
	s := t.becomes(flooderVictim, "temperature", failed)
	t.Logf("a sensor of the flooded node: awareness latency %s", s.GetAwarenessLatency().AsDuration())
	if err := <-done; err != nil {
		t.Error(err)
	}
	t.inject("0,0,0", sensor("temperature", 45))
	t.becomes(flooderVictim, "temperature", normal)
}

// calledFailed is what no pause of the machine excuses.
const calledFailed = "a node that answers was called FAILED"

// accused cuts all links of the flooded node, so that all its neighbours accuse it: it answers the challenges within
// their time, and neither it nor one of its halves is FAILED.
func (t trial) accused(wrap func([]string) []string, rate int, targets []string, periods config.Periods) {
	t.Helper()
	for try := 1; ; try++ {
		longest := watchMachine()
		wrong := t.accusedOnce(wrap, rate, targets, periods)
		stood := longest()
		if len(wrong) == 0 {
			return
		}
		never := slices.ContainsFunc(wrong, func(w string) bool { return strings.HasPrefix(w, calledFailed) })
		if stood < standstill || try == measurements || never {
			t.Errorf("at %d datagrams in a second, accused by all neighbours: %q", rate, wrong)
			return
		}
		t.Logf("the machine stood still for %s: measured once more; meanwhile %q", stood, wrong)
	}
}

// accusedOnce is one measurement of accused. It returns everything that went wrong.
func (t trial) accusedOnce(wrap func([]string) []string, rate int, targets []string, periods config.Periods) (wrong []string) {
	t.Helper()
	t.settled()
	before, round := t.supervisorsTotal(), begin(t.T, t.Lab)
	done := make(chan error, 1)
	go func() {
		_, err := flood(t.Context(), wrap, rate, *floodTime, targets)
		done <- err
	}()
	for _, link := range t.linksOf(flooderVictim) {
		t.inject("0,0,0", cluster.Fault{Kind: cluster.CutLink, Dir: link})
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	took, answers := slowest(before, t.supervisorsTotal(), "lofamo_challenge_answer_seconds")
	t.Logf("at %d datagrams in a second, accused by all neighbours: %.0f challenges answered, the slowest within %.3g s of %s", rate, answers,
		took, periods.ChallengeNode)
	if answers == 0 || took > periods.ChallengeNode.Seconds() {
		wrong = append(wrong,
			fmt.Sprintf("%.0f challenges were answered within %.3g s, want at least one and all within %s", answers, took, periods.ChallengeNode))
	}
	for _, s := range round.Since(round.mark) {
		if s.GetTo() == failed && !strings.HasPrefix(s.GetComponent(), "link/") {
			wrong = append(wrong, fmt.Sprintf("%s: %s", calledFailed, s))
		}
	}
	t.heal("0,0,0")
	return wrong
}

// TestFloodOfStrangersHarmsNoNode floods every UDP port of a node with small datagrams, without any certificate: from a
// process on the same machine, and from another network namespace. No component is called SICK or FAILED.
func TestFloodOfStrangersHarmsNoNode(t *testing.T) {
	t.Run("local", func(t *testing.T) {
		l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 3, Periods: floodPeriods()})
		try(t, l, "flood", func(t trial) { t.floods("on the same machine", nil, t.udpPorts("n0-0-0")) })
	})
	t.Run("namespace", func(t *testing.T) {
		l := network(t, "2x1x1", 3, 1)
		tryWired(t, l, "flood", func(t wired) {
			wrap := func(argv []string) []string { return t.net.Command("n1-0-0", argv) }
			t.floods("in the neighbour's namespace", wrap, t.udpPorts("n0-0-0"))
		})
	})
}
