package orders

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// policyKey is the key of the policy's runs.
const policyKey = store.Prefix + "managed/policy"

// damage stores a value that cannot be decoded.
func (n *diagnosedNodes) damage(key string) {
	n.t.Helper()
	if _, err := n.m.cfg.Reports.Write(n.t.Context(), store.Write{Puts: []store.KV{{Key: key, Value: []byte("{")}}}); err != nil {
		n.t.Fatal(err)
	}
}

// logged returns a function that counts the warnings so far with a text.
func (n *diagnosedNodes) logged() func(text string) int {
	var out bytes.Buffer
	n.m.cfg.Logger = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return func(text string) int { return strings.Count(out.String(), text) }
}

// A new leader gives up an ordered procedure that cannot be decoded, and logs it once. Failed reads before are retried.
func TestDamagedOrderIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		warnings := n.logged()
		n.damage(store.OrderedKey)
		n.m.cfg.Reports = &faintReports{n.m.cfg.Reports, 3}
		n.m.Lead(8)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if n.m.Resume(ctx); ctx.Err() != nil {
			t.Error("it reads the damaged value until the term ends")
		}
		if reads, ends := warnings("read the ordered procedure: retrying"), warnings("outcome of the last procedure unknown"); reads != 1 ||
			ends != 1 {
			t.Errorf("%d warnings of failed reads, %d of the end: want one each", reads, ends)
		}
	})
}

// Without an ordered procedure, a new leader of a region has nothing to warn about, though the region's torus allows no procedure.
func TestRegionWithoutOrderDoesNotWarn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		warnings := n.logged()
		n.m.cfg.Places = func(context.Context) ([]Place, error) { return nil, errors.New("the torus spans regions") }
		n.m.Lead(8)
		n.m.Resume(t.Context())
		if got := warnings("level=WARN"); got != 0 {
			t.Errorf("%d warnings: want none", got)
		}
		kv, err := store.OrderedPut(store.Ordered{Term: 5, Count: 1, Subject: "operator/o", Started: time.Now()})
		if err == nil {
			_, err = n.m.cfg.Reports.Write(t.Context(), store.Write{Puts: []store.KV{kv}})
		}
		if err != nil {
			t.Fatal(err)
		}
		n.m.Resume(t.Context())
		if got := warnings("outcome of the last procedure unknown"); got != 1 {
			t.Errorf("%d warnings of an order that exists: want one", got)
		}
	})
}

// A list of the policy's runs that cannot be decoded counts as empty, and the policy's next run replaces it.
func TestDamagedPolicyRunsCountAsNone(t *testing.T) {
	for _, drain := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
			warnings := n.logged()
			n.damage(policyKey)
			runs := n.watched(DiagnosisPolicy{Links: true, After: time.Second, MinInterval: time.Hour, Drain: drain}, func() int {
				runs, err := n.m.cfg.Reports.PolicyRuns(t.Context())
				if err != nil {
					t.Error(err)
				}
				return len(runs)
			})
			runs(7, time.Minute, 1)
			if got := warnings("level=WARN"); got != 1 {
				t.Errorf("drain %t: %d warnings: want 1", drain, got)
			}
		})
	}
}

// damagedReports are stores whose last reports cannot be decoded.
type damagedReports struct{ Reports }

func (damagedReports) LastDiagnosis(context.Context) (*lofamov1.DiagnosisReport, error) {
	return nil, store.ErrUndecodable
}

func (damagedReports) LastProcedure(context.Context) (*lofamov1.ProcedureReport, error) {
	return nil, store.ErrUndecodable
}

// Damaged reports do not stop the policy.
func TestDamagedReportsDoNotStopPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		n.m.cfg.Reports = damagedReports{n.m.cfg.Reports}
		tests := n.watched(DiagnosisPolicy{Links: true, After: time.Second, MinInterval: time.Hour}, func() int { return len(n.orders) / 2 })
		tests(7, time.Minute, 1)
	})
}

// silentReports fails the first reads of the policy's runs.
type silentReports struct {
	Reports

	fails int
}

func (r *silentReports) PolicyRuns(ctx context.Context) ([]store.PolicyRun, error) {
	if r.fails--; r.fails >= 0 {
		return nil, errors.New("no quorum")
	}
	return r.Reports.PolicyRuns(ctx)
}

// The policy waits for the store, and logs this once.
func TestPolicyWaitsForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		warnings := n.logged()
		n.m.cfg.Reports = &silentReports{n.m.cfg.Reports, 3}
		tests := n.watched(DiagnosisPolicy{Links: true, After: time.Second, MinInterval: time.Hour}, func() int { return len(n.orders) / 2 })
		tests(7, time.Minute, 1)
		if got := warnings("level=WARN"); got != 1 {
			t.Errorf("%d warnings: want 1", got)
		}
	})
}

// slowReports answers no read of the policy's runs, and takes only writes whose context has not ended.
type slowReports struct{ Reports }

func (slowReports) PolicyRuns(ctx context.Context) ([]store.PolicyRun, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (r slowReports) Write(ctx context.Context, w store.Write) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reports.Write(ctx, w)
}

// A slow read of the policy's runs leaves time to store the report.
func TestReportIsStoredDespiteSlowRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		n.m.cfg.Reports = slowReports{n.m.cfg.Reports}
		n.m.keep(t.Context(), store.Write{}, nil, &lofamov1.ProcedureReport{Subject: PolicySubject, Started: timestamppb.Now()})
		if r, err := n.m.LastProcedure(t.Context()); err != nil || r.GetSubject() != PolicySubject {
			t.Errorf("the last procedure is %v, %v: want that of the policy", r, err)
		}
	})
}
