package main

import "testing"

// TestMissingConfigurationIsNamed runs a command without --config and without settings in the environment. One line asks for either, and
// no key is listed.
func TestMissingConfigurationIsNamed(t *testing.T) {
	for _, command := range []string{"status", "faults", "acts", "restart"} {
		refusal(t, 2, []string{"--config: given nothing: want the configuration file", "/etc/lofamo/agent.yaml", agentEnv}, command)
	}
	refusal(t, 78, []string{"--config: given nothing: want the configuration file"}, "run")
	t.Setenv(agentEnv+"STATEDIR", t.TempDir())
	refusal(t, 2, []string{"configuration from the environment: cluster: given nothing"}, "status")
}
