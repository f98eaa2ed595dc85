package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const base = `
cluster: example
listen: 10.0.0.9:7010
tls: {ca: /etc/lofamo/ca.pem, cert: /etc/lofamo/executor.pem, key: /etc/lofamo/executor.key}
`

func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "executor.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

// TestDocumentedConfigurationLoads loads the examples in docs/executor-process.md.
func TestDocumentedConfigurationLoads(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/executor-process.md")
	if err != nil {
		t.Fatal(err)
	}
	text, in := base, false
	for line := range strings.Lines(string(doc)) {
		code, indented := strings.CutPrefix(line, "    ")
		for _, key := range []string{"commands:", "slurm:", "power:"} {
			in = in || strings.HasPrefix(code, key) && indented
		}
		if in = in && indented; in {
			text += code
		}
	}
	cfg, err := load(t, text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if len(cfg.Commands) != 1 || cfg.Slurm == nil || len(cfg.Slurm.Nodes) != 1 || !cfg.Power.Enabled || len(cfg.Power.Nodes) != 2 ||
		cfg.AtOnce != 16 {
		t.Errorf("%+v", cfg)
	}
}

func TestConfigurationRefusesUnknownValues(t *testing.T) {
	if cfg, err := load(t, base); err != nil || cfg.Slurm != nil || cfg.Power.Enabled {
		t.Fatalf("%+v, %v", cfg, err)
	}
	for text, want := range map[string]string{
		`http: "9100"`:                             "http: given 9100",
		"http: 10.0.0.9:7010":                      "want an address other than that of listen",
		"atOnce: 0":                                "atOnce: given 0",
		"stopTimeout: 2h":                          "stopTimeout: given 2h0m0s",
		`stateDir: ""`:                             "stateDir: given nothing",
		"slurm: {}":                                "slurm.scontrol: given",
		"slurm: {scontrol: /x, config: /y}":        "slurm.config: unknown key",
		"power: {enabled: true}":                   "power.nodes: given nothing",
		"power: {nodes: {n1: {method: telnet}}}":   "power.nodes.n1.method: given",
		"power: {nodes: {n1: {password: secret}}}": "power.nodes.n1.password: unknown key",
		"commands: [{name: a, path: b}]":           "commands[0].path: given",
		"command: []":                              "command: unknown key",
	} {
		if _, err := load(t, base+text+"\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
