package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
)

func TestJoinWritesConfigurationAndToken(t *testing.T) {
	dir := t.TempDir()
	etc, token := filepath.Join(dir, "etc"), filepath.Join(dir, "token")
	text := pki.NewJoinToken([32]byte{1}).String()
	if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"join", "10.0.0.101", "fd00::1", "s3:7000", "--token-file", token, "--etc", etc, "--node", "n7", "--label", "rack=r7"}
	for range 2 { // the same again changes nothing
		out, err := agentCommand(t, args...).CombinedOutput()
		if err != nil || string(out) != "to start it: systemctl enable --now lofamo-agent\n" {
			t.Fatalf("%v: %s", err, out)
		}
	}
	cfg, err := config.ReadAgent(filepath.Join(etc, "agent.yaml"), nil)
	if err != nil || cfg.Node != "n7" || cfg.Join.Labels["rack"] != "r7" || cfg.Join.TokenFile != filepath.Join(etc, "token") ||
		strings.Join(cfg.Join.Supervisors, " ") != "10.0.0.101:7944 [fd00::1]:7944 s3:7000" {
		t.Errorf("%+v, node %s, %v", cfg.Join, cfg.Node, err)
	}
	b, err := os.ReadFile(cfg.Join.TokenFile)
	if info, statErr := os.Stat(cfg.Join.TokenFile); err != nil || statErr != nil || string(b) != text+"\n" || info.Mode().Perm() != 0o400 {
		t.Errorf("token: %q, %v, %v", b, err, info)
	}
	refusal(t, 1, []string{"agent.yaml exists and says something else"},
		"join", "10.0.0.9", "--node", "n7", "--token-file", token, "--etc", etc)
}

func TestJoinRefusesBeforeItWrites(t *testing.T) {
	dir := t.TempDir()
	etc, token, other := filepath.Join(dir, "etc"), filepath.Join(dir, "token"), filepath.Join(dir, "other")
	for file, text := range map[string]string{token: pki.NewJoinToken([32]byte{1}).String(), other: "hello"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"want HOST[:PORT] of supervisors", nil},
		{"--token-file is missing", []string{"10.0.0.1"}},
		{"not a token of this kind", []string{"10.0.0.1", "--token-file", other}},
		{"join.supervisors[0]", []string{"10.0.0.1:x", "--token-file", token, "--node", "n7"}},
		{"join.address", []string{"10.0.0.1", "--token-file", token, "--node", "n7", "--address", "here"}},
		{"node: given", []string{"10.0.0.1", "--token-file", token, "--node", "n 7"}},
	} {
		refusal(t, 2, []string{tc.want}, append(append([]string{"join"}, tc.args...), "--etc", etc)...)
	}
	if _, err := os.Stat(etc); !os.IsNotExist(err) {
		t.Errorf("%s: %v: want nothing written", etc, err)
	}
}
