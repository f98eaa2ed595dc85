package webhook

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// endless answers with a status and a body that never ends.
func endless(status int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// broken answers with a status and a body that breaks off.
func broken(status int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(status)
		_, _ = w.Write([]byte("OK"))
	}
}

// TestStatusCountsDespiteIncompleteBody: without the contract only the status counts. So a receiver that accepts or refuses a notification
// gets it once. With the contract the missing part may be the outcome, and the supervisor asks for the outcome.
func TestStatusCountsDespiteIncompleteBody(t *testing.T) {
	page := strings.Repeat("x", 2*executor.MaxHTTPAnswer)
	for name, c := range map[string]struct {
		answer   func(http.ResponseWriter, *http.Request)
		want     response.Outcome // without the contract
		actions  string
		contract string // the requests with the contract
	}{
		"200, long":    {replies(http.StatusOK, page), response.Succeeded, "do", "do status"},
		"200, endless": {endless(http.StatusOK), response.Succeeded, "do", "do status"},
		"200, broken":  {broken(http.StatusOK), response.Succeeded, "do", "do status"},
		"403, endless": {endless(http.StatusForbidden), response.Unchanged, "do", "do status"},
		"404, long":    {replies(http.StatusNotFound, page), response.Unchanged, "do", "do status"},
		"429, long":    {replies(http.StatusTooManyRequests, page), response.Succeeded, "do do", "do status"},
		"503, long":    {replies(http.StatusServiceUnavailable, page), response.Succeeded, "do do", "do status"},
		"503, broken":  {broken(http.StatusServiceUnavailable), response.Succeeded, "do do", "do status"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, c.answer, replies(http.StatusOK, ""))
			w := targetAt(t, s.URL)
			w.Kinds, w.Answers, w.RequestTimeout = []string{"notify"}, config.AnswersStatus, config.Duration(5*time.Second)
			got := newExecutor(t, w).Do(t.Context(), jobOf(response.WebhookNotify, 1))
			if got.Outcome != c.want || s.actions() != c.actions {
				t.Errorf("%+v after %q: want outcome %d after %q", got, s.actions(), c.want, c.actions)
			}
			s = serve(t, c.answer, outcome("unknown", `,"attempt":1`))
			w = targetAt(t, s.URL)
			w.RequestTimeout = config.Duration(2 * time.Second)
			got = newExecutor(t, w).Do(t.Context(), jobOf(response.WebhookNotify, 1))
			if got.Outcome != response.NotKnown || s.actions() != c.contract {
				t.Errorf("with the contract: %+v after %q: want outcome %d after %q", got, s.actions(), response.NotKnown, c.contract)
			}
		})
	}
}

// TestAcceptedNotificationSucceedsAtDeadline: the attempt's time ends while the body of a 200 is still on its way.
func TestAcceptedNotificationSucceedsAtDeadline(t *testing.T) {
	s := serve(t, endless(http.StatusOK))
	w := targetAt(t, s.URL)
	w.Kinds, w.Answers, w.RequestTimeout = []string{"notify"}, config.AnswersStatus, config.Duration(time.Minute)
	got := newExecutor(t, w).Do(t.Context(), jobOf(response.WebhookNotify, 1, within(5*time.Second)))
	if got.Outcome != response.Succeeded || s.actions() != "do" {
		t.Errorf("%+v after %q", got, s.actions())
	}
}
