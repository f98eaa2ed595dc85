package half

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestDenyListIsReadAgainAfterFailure: supervisors send the list to the host half only. So a DNP half that fails to read the file once must
// read it again, even if nothing writes the file.
func TestDenyListIsReadAgainAfterFailure(t *testing.T) {
	cfg := agenttest.NodeConfig(t)
	if err := MakeStateDir(cfg.StateDir); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(cfg.TLS.CA)
	ca, err := pki.LoadCA(cfg.TLS.CA, filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	op, err := ca.IssueSigner(pki.Identity{Cluster: cfg.Cluster, Role: pki.RoleOperator, Name: "o"})
	if err != nil {
		t.Fatal(err)
	}
	signed, err := pki.SignDenyList(&lofamov1.DenyList{Cluster: cfg.Cluster, Version: 1, Issued: timestamppb.Now()}, op)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.Marshal(signed)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cfg.StateDir, pki.DenyListFile)
	if err := os.WriteFile(path+".real", raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path+".real", path); err != nil { // cannot be read: a link is not followed
		t.Fatal(err)
	}
	var log syncLog
	c, err := Prepare(cfg, fault.HalfDNP, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	var changes atomic.Int32
	go func() {
		defer close(ended)
		c.Trust.Run(ctx, func() { changes.Add(1) })
	}()
	defer func() {
		cancel()
		<-ended
	}()
	c.Trust.Wake()
	agenttest.Await(t, "the list is looked at", func() bool { return len(c.Trust.look) == 0 })
	if changes.Load() != 1 { // otherwise the list that comes late would count as the one at the start
		t.Errorf("%d times told of the list at the start: want 1", changes.Load())
	}
	if err := os.Rename(path+".real", path); err != nil { // with its old time
		t.Fatal(err)
	}
	agenttest.Await(t, "the list is read", func() bool {
		c.Trust.Wake()
		return c.Trust.Version.Load() == 1
	})
	if n := strings.Count(log.String(), "works again"); n > 1 {
		t.Errorf("the log says %d times that the list can be read again:\n%s", n, log.String())
	}
}

// syncLog collects a log from several goroutines.
type syncLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *syncLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *syncLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
