package config

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// LoadAgent reads a file, applies the environment ("NAME=value" as from os.Environ) and validates.
func LoadAgent(path string, environ []string) (Agent, error) {
	a, err := ReadAgent(path, environ)
	if err != nil {
		return Agent{}, err
	}
	if err := a.Validate(); err != nil {
		return Agent{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return a, nil
}

// LoadSupervisor reads a file, applies the environment ("NAME=value" as from os.Environ) and
// validates.
func LoadSupervisor(path string, environ []string) (Supervisor, error) {
	s, err := ReadSupervisor(path, environ)
	if err != nil {
		return Supervisor{}, err
	}
	if err := s.Validate(); err != nil {
		return Supervisor{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return s, nil
}

// ReadAgent is LoadAgent without the validation, for commands that set more fields by flags. With an empty path it uses
// only defaults and the environment.
func ReadAgent(path string, environ []string) (Agent, error) {
	a := DefaultAgent()
	if err := readFile(path, MaxFile, &a); err != nil {
		return Agent{}, err
	}
	if err := applyEnv("LOFAMO_AGENT_", environ, agentEnv(&a)); err != nil {
		return Agent{}, err
	}
	a.complete()
	return a, nil
}

// AgentStateDir returns the state directory of an agent's configuration, even if other keys are invalid.
func AgentStateDir(path string, environ []string) (string, error) {
	dir := DefaultAgent().StateDir
	if path != "" {
		b, err := ReadBounded(path, MaxFile)
		if err == nil {
			dir, err = stateDirIn(b, dir)
		}
		if err != nil {
			return "", fmt.Errorf("configuration %s: %w", path, err)
		}
	}
	for _, kv := range environ {
		if value, ok := strings.CutPrefix(kv, "LOFAMO_AGENT_STATEDIR="); ok {
			dir = value
		}
	}
	return dir, nil
}

// stateDirIn returns the value of stateDir in a file, or def if it has none.
func stateDirIn(b []byte, def string) (string, error) {
	a := struct {
		StateDir string `json:"stateDir"`
	}{def}
	err := yaml.Unmarshal(b, &a)
	return a.StateDir, err
}

// ReadSupervisor is LoadSupervisor without the validation, for commands that set more fields by flags. With an empty
// path it uses only defaults and the environment.
func ReadSupervisor(path string, environ []string) (Supervisor, error) {
	s := DefaultSupervisor()
	if err := readFile(path, MaxNodesFile, &s); err != nil {
		return Supervisor{}, err
	}
	if err := applyEnv("LOFAMO_SUPERVISOR_", environ, supervisorEnv(&s)); err != nil {
		return Supervisor{}, err
	}
	s.complete()
	return s, nil
}

// ReadStrict reads a file of at most most bytes over the defaults in into, a pointer to a struct whose fields have JSON names: strict
// YAML, like the other configurations. Callers have their own configuration struct, and validate it.
func ReadStrict(path string, most int, into any) error { return readFile(path, most, into) }

func readFile(path string, most int, into any) error {
	if path == "" {
		return nil
	}
	b, err := ReadBounded(path, most)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", path, err)
	}
	if err := decode(b, into); err != nil {
		return fmt.Errorf("configuration %s: %w", path, err)
	}
	return nil
}
