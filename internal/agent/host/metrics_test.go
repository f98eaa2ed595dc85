package host

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/internal/testing/netnstest"
)

// runningHalf is a host half that runs until the test ends.
type runningHalf struct {
	t     *testing.T
	lines logLines
	ended chan error
}

// logLines receives a log's lines.
type logLines chan string

func (l logLines) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default: // more than a test reads
	}
	return len(b), nil
}

func runHalf(t *testing.T, cfg config.Agent) *runningHalf {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &runningHalf{t, make(logLines, 1024), make(chan error, 1)}
	go func() { r.ended <- Run(ctx, cfg, half.SchedulingDefault, slog.New(slog.NewTextHandler(r.lines, nil))) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(agenttest.Bound):
			t.Error("the half did not end with its context")
		}
	})
	return r
}

// wantLine waits for a log line with all the texts.
func (r *runningHalf) wantLine(texts ...string) {
	r.t.Helper()
	late := time.After(agenttest.Bound)
	for {
		select {
		case line := <-r.lines:
			has := true
			for _, text := range texts {
				has = has && strings.Contains(line, text)
			}
			if has {
				return
			}
		case err := <-r.ended:
			r.ended <- nil
			r.t.Fatalf("the half ended: %v; want a line with %q", err, texts)
		case <-late:
			r.t.Fatalf("not within %s: a line with %q", agenttest.Bound, texts)
		}
	}
}

// wantHealthy expects an answer of the half at its HTTP address.
func (r *runningHalf) wantHealthy(addr string) {
	r.t.Helper()
	client := http.Client{Timeout: agenttest.Bound}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + addr + "/healthz")
	if err != nil {
		r.t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		r.t.Errorf("%s/healthz: %s", addr, answer.Status)
	}
}

// TestHalfOutlivesTakenMetricsPort: another program has the port of the metrics. The half runs without them, and serves them once the port
// is free.
func TestHalfOutlivesTakenMetricsPort(t *testing.T) {
	cfg := agenttest.NodeConfig(t)
	other, err := net.Listen("tcp", cfg.Service.Listen) // the half's own socket there is of UDP
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	cfg.HTTP = cfg.Service.Listen
	h := runHalf(t, cfg)
	h.wantLine("level=WARN", "serve metrics at "+cfg.HTTP+" fails", "address already in use")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	h.wantLine("level=INFO", "metrics served", cfg.HTTP)
	h.wantHealthy(cfg.HTTP)
}

// TestHalfOutlivesMissingServiceAddress: the card with the address of the service network and of the metrics is missing when the half
// starts.
func TestHalfOutlivesMissingServiceAddress(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	cfg := agenttest.NodeConfig(t)
	cfg.Service.Listen, cfg.HTTP = "192.0.2.77:7100", "192.0.2.77:7102"
	h := runHalf(t, cfg)
	h.wantLine("level=WARN", "serve metrics at "+cfg.HTTP+" fails", "cannot assign requested address")
	netnstest.IP(t, "addr add 192.0.2.77/32 dev lo")
	h.wantLine("level=INFO", "metrics served", cfg.HTTP)
	h.wantHealthy(cfg.HTTP)
}
