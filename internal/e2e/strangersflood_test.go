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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/localcluster"
)

// floodRates are the datagrams per second of TestFloodOfStrangersHarmsNobody; -flood.rates=10000,50000,200000 makes the published table.
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
	begin, sent, refused := time.Now(), 0, 0
	for time.Since(begin) < lasts {
		for due := int(time.Since(begin).Seconds() * float64(rate)); sent < due; sent++ {
			if syscall.Sendto(fd, []byte("a small datagram"), 0, &to[sent%len(to)]) != nil {
				refused++ // ICMP's answer to one before, or no room
			}
			if sent%64 == 63 && time.Since(begin) > lasts {
				break
			}
		}
		time.Sleep(time.Millisecond)
	}
	fmt.Printf("%d %d\n", sent, int(time.Since(begin).Milliseconds()))
	return nil
}

// flood runs a flooder to its end, by a command that may lead into another namespace, and returns how many datagrams per second it has sent.
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

// harmed are the changes to SICK or FAILED since a mark, those of self-tests and sensors of the machine included.
func (t trial) harmed(mark int) (out []string) {
	for _, s := range t.Since(mark) {
		if s.GetTo() == failed || s.GetTo() == sick {
			out = append(out, s.String())
		}
	}
	return out
}

// quantile is the upper bound of the bucket in which a share of what a histogram has counted since before lies, in the unit of the metric.
func quantile(before, after metrics, name string, share float64) float64 {
	counts := map[float64]float64{}
	for sample, v := range after {
		labels, ok := strings.CutPrefix(sample, name+"_bucket{")
		if !ok {
			continue
		}
		_, le, _ := strings.Cut(labels, `le="`)
		le, _, _ = strings.Cut(le, `"`)
		at, err := strconv.ParseFloat(le, 64)
		if err == nil {
			counts[at] += v - before[sample]
		}
	}
	total, best := counts[math.Inf(1)], math.Inf(1)
	for at, n := range counts {
		if n >= share*total {
			best = min(best, at)
		}
	}
	return best
}

// ages is the 99th percentile of the ages of reports, digests included, as the supervisors have counted them.
func (t trial) ages(before []metrics) (p99 float64, now []metrics) {
	t.Helper()
	sum, old := metrics{}, metrics{}
	for i, s := range t.Cluster.Info().Supervisors {
		m := metrics{}
		if s.HTTP != "" {
			m = scrape(t.T, s.HTTP)
		}
		now = append(now, m)
		for k, v := range m {
			sum[k] += v
		}
		if before != nil {
			for k, v := range before[i] {
				old[k] += v
			}
		}
	}
	return quantile(old, sum, "lofamo_supervisor_report_age_seconds", 0.99), now
}

// roundTrip is the smoothed time from a report or digest of a node's host half to its acknowledgement, by the direct rail.
func (t trial) roundTrip(http string) time.Duration {
	t.Helper()
	if http == "" {
		return 0 // nodes in namespaces serve no metrics
	}
	return time.Duration(scrape(t.T, http).total("lofamo_agent_rail_rtt_seconds", `direct`) * float64(time.Second)).Round(time.Microsecond)
}

// floods sends floods of all rates at every UDP port of n0-0-0 and checks that nobody comes to harm, and that a fault which happens meanwhile
// is known.
func (t trial) floods(sender string, wrap func([]string) []string, targets []string) {
	t.Helper()
	begin := time.Now()
	_, start := t.ages(nil)
	select { // a quiet time of the same length, to compare with
	case <-time.After(*floodTime):
	case <-t.Context().Done():
		t.Fatal("no time is left")
	}
	quietAge, last := t.ages(start)
	http := t.Cluster.Info().Nodes[0].HTTP
	t.Logf("sender %s; quiet for %s: 99 %% of the reports and digests at most %.3g s old, acknowledged to the node after %s",
		sender, time.Since(begin).Round(time.Second), quietAge, t.roundTrip(http))
	for text := range strings.SplitSeq(*floodRates, ",") {
		rate, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("-flood.rates: %q: want numbers separated by commas", *floodRates)
		}
		mark := t.Mark()
		real, err := flood(t.Context(), wrap, rate, *floodTime, targets)
		if err != nil {
			t.Fatal(err)
		}
		harmed := t.harmed(mark)
		var age float64
		age, last = t.ages(last)
		t.Logf("sender %s, wanted %d/s, sent %.0f/s to %d ports: %d changes to SICK or FAILED; 99 %% of the reports and digests at most %.3g s old, acknowledged to the node after %s",
			sender, rate, real, len(targets), len(harmed), age, t.roundTrip(http))
		for _, h := range harmed {
			t.Errorf("at %d datagrams in a second: %s", rate, h)
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := flood(t.Context(), wrap, 20_000, *floodTime, targets)
		done <- err
	}()
	t.inject("0,0,0", sensor("temperature", 110))
	s := t.becomes("n0-0-0", "temperature", failed)
	t.Logf("a sensor of the flooded node: awareness latency %s", s.GetAwarenessLatency().AsDuration())
	if err := <-done; err != nil {
		t.Error(err)
	}
	t.inject("0,0,0", sensor("temperature", 45))
	t.becomes("n0-0-0", "temperature", normal)
}

// TestFloodOfStrangersHarmsNobody floods every UDP port of a node with small datagrams, without any certificate: from a process on the same
// machine, and from another network namespace. Nothing is called SICK or FAILED for it.
func TestFloodOfStrangersHarmsNobody(t *testing.T) {
	t.Run("local", func(t *testing.T) {
		l := clusterOf(t, "2x2x1", localcluster.Options{Supervisors: 3, Periods: floodPeriods()})
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
