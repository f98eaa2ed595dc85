package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/config"
)

// edits change the configurations of a cluster's members before these start. Both may be nil.
type edits struct {
	agent      func(*config.Agent)
	supervisor func(*config.Supervisor)
}

// command is cluster.Options.Command: every member gets an edited copy of its configuration, which
// lies beside the one that the cluster has made.
func (e edits) command(t *testing.T) func(member string, argv []string) []string {
	return func(_ string, argv []string) []string {
		argv = slices.Clone(argv)
		i := slices.Index(argv, "--config") + 1
		path := filepath.Join(filepath.Dir(argv[i]), "edited.yaml")
		var v any
		if filepath.Base(argv[i]) == "agent.yaml" {
			cfg, err := config.LoadAgent(argv[i], nil)
			if err != nil {
				t.Error(err)
			}
			if e.agent != nil {
				e.agent(&cfg)
			}
			v = cfg
		} else {
			cfg, err := config.LoadSupervisor(argv[i], nil)
			if err != nil {
				t.Error(err)
			}
			if e.supervisor != nil {
				e.supervisor(&cfg)
			}
			v = cfg
		}
		b, err := yaml.Marshal(v)
		if err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
		argv[i] = path
		return argv
	}
}

// metrics are the samples at /metrics, by name with labels.
type metrics map[string]float64

// total sums the samples of a name with a label, such as `class="role"`; with "", all samples of the name.
func (m metrics) total(name, label string) (sum float64) {
	for sample, v := range m {
		if n, labels, _ := strings.Cut(sample, "{"); n == name && strings.Contains(labels, label) {
			sum += v
		}
	}
	return sum
}

// served returns the content of an address's /metrics.
func served(t *testing.T, addr string) string {
	t.Helper()
	return answered(t, "scrape "+addr, func() (string, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/metrics", nil)
		if err != nil {
			return "", err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		all, err := io.ReadAll(resp.Body)
		return string(all), err
	})
}

func scrape(t *testing.T, addr string) metrics {
	t.Helper()
	out := metrics{}
	for lines := bufio.NewScanner(strings.NewReader(served(t, addr))); lines.Scan(); {
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ') // a label may have spaces too
		if v, err := strconv.ParseFloat(line[i+1:], 64); i > 0 && err == nil && line[0] != '#' {
			out[line[:i]] = v
		}
	}
	return out
}

// refused returns how much of one class a supervisor has refused.
func (m metrics) refused(class string) float64 {
	return m.total("lofamo_refused_total", fmt.Sprintf("class=%q", class))
}

// refusedByAgent is refused of a host half.
func (m metrics) refusedByAgent(reason string) float64 {
	return m.total("lofamo_agent_refused_total", fmt.Sprintf("reason=%q", reason))
}
