package respond

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/response"
)

// TestMissingSourceIsLoggedOnce: each policy once while its warning stands, and again after it has ended.
func TestMissingSourceIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	missing := map[response.Source]string{response.FromControllers: "controllers.nodes"}
	r := &Responder{cfg: Config{Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Unconfigured: func(s response.Source) string { return missing[s] }}}
	needs := func(name, condition string) *response.Policy {
		return &response.Policy{Name: name, Outside: []response.Outside{{Condition: condition, Status: "True"}}}
	}
	r.sources.set([]*response.Policy{needs("a", response.NodePoweredOff), needs("b", "KernelDeadlock"), {Name: "c"}})
	for i, step := range []struct {
		key  string
		want int
	}{{"controllers.nodes", 1}, {"controllers.nodes", 1}, {"", 1}, {"controllers.nodes", 2}} {
		missing[response.FromControllers] = step.key
		r.WarnSources()
		if got := strings.Count(log.String(), "policy=a"); got != step.want {
			t.Errorf("step %d: %d lines about a: want %d\n%s", i, got, step.want, &log)
		}
	}
	if strings.Contains(log.String(), "policy=b") || strings.Contains(log.String(), "policy=c") ||
		!strings.Contains(log.String(), "set controllers.nodes") {
		t.Errorf("%s", &log)
	}
}
