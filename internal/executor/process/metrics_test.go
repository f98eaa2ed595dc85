package process_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/executor/process/processtest"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/response"
)

// get returns the status and the text of a page; 0 without an answer.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	b, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestMetricsCountAttempts: the metrics show ended, refused and running attempts, starting at 0, and the health pages show whether
// the process takes attempts.
func TestMetricsCountAttempts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Config.HTTP = freeport.Addr(t).String()
	signer, err := pki.LoadSigner(b.Config.TLS.Cert, b.Config.TLS.Key)
	if err != nil {
		t.Fatal(err)
	}
	stop := b.Start(t)
	page := "http://" + b.Config.HTTP
	wantLines := func(when string, lines ...string) {
		t.Helper()
		code, text := get(t, page+"/metrics")
		for _, l := range lines {
			if code != http.StatusOK || !strings.Contains(text, "\n"+l+"\n") {
				t.Errorf("%s: no %q in %d:\n%s", when, l, code, text)
			}
		}
	}
	wantHealth := func(when string, healthy, ready int) {
		t.Helper()
		for path, want := range map[string]int{"/healthz": healthy, "/readyz": ready} {
			if code, text := get(t, page+path); code != want {
				t.Errorf("%s: %s: %d %s, want %d", when, path, code, text, want)
			}
		}
	}
	wantLines("at first", `lofamo_executor_attempts_total{kind="command",outcome="succeeded"} 0`,
		`lofamo_executor_attempts_total{kind="command",outcome="not_known"} 0`,
		`lofamo_executor_refused_total{reason="stale_token"} 0`, `lofamo_executor_highest_token 0`, `lofamo_executor_attempts_running 0`,
		`lofamo_executor_attempts_remembered 0`,
		`lofamo_executor_ledger_failures_total 0`, fmt.Sprintf("lofamo_executor_certificate_expires_timestamp_seconds %v",
			float64(signer.Expires().Unix())),
		fmt.Sprintf("lofamo_executor_certificate_begins_timestamp_seconds %v", float64(signer.Begins().Unix())))
	wantHealth("at first", http.StatusOK, http.StatusOK)

	x := b.Supervisor(t, b.Config.Listen)
	if err := os.WriteFile(b.hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		want(t, x.Do(ctx, job(5, "r5-1", 1)), response.Succeeded, "")
	}()
	b.wantActs(t, "r5-1 0 1 5\n")
	wantLines("under way", `lofamo_executor_highest_token 5`, `lofamo_executor_attempts_running 1`, `lofamo_executor_attempts_remembered 1`)
	if err := os.Remove(b.hold); err != nil {
		t.Fatal(err)
	}
	<-done
	cancel()
	want(t, processtest.Do(t, x, job(4, "r4-1", 1)), response.StaleToken, "has seen 5")
	wantLines("afterwards", `lofamo_executor_attempts_total{kind="command",outcome="succeeded"} 1`,
		`lofamo_executor_refused_total{reason="stale_token"} 1`)

	way := filepath.Join(b.Config.StateDir, "ledger.new")
	if err := os.Mkdir(way, 0o700); err != nil { // blocks the new file
		t.Fatal(err)
	}
	j := job(6, "r6-1", 1)
	want(t, processtest.Do(t, x, j), response.Unchanged, "the ledger cannot be written")
	wantLines("without a ledger", `lofamo_executor_ledger_failures_total 1`,
		`lofamo_executor_attempts_total{kind="command",outcome="unchanged"} 1`)
	wantHealth("without a ledger", http.StatusOK, http.StatusServiceUnavailable)
	if _, text := get(t, page+"/metrics"); !strings.Contains(text, "lofamo_executor_build_info{") ||
		!strings.Contains(text, "process_start_time_seconds ") {
		t.Errorf("neither build nor start in:\n%s", text)
	}
	stop()
	wantHealth("stopped", 0, 0)
}
