package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/client-go/util/jsonpath"
)

// parsePath parses a template as kubectl takes it: {.nodes[*].id}. Braces around a single path may be left out.
func parsePath(template string) (*jsonpath.JSONPath, error) {
	if template == "" {
		return nil, errors.New("jsonpath: given no template: want one such as jsonpath={.nodes[*].id}")
	}
	text := template
	if !strings.Contains(text, "{") {
		text = "{." + strings.TrimPrefix(strings.TrimPrefix(text, "$"), ".") + "}"
	}
	p := jsonpath.New("-o").AllowMissingKeys(true)
	if err := p.Parse(text); err != nil {
		return nil, fmt.Errorf("jsonpath %q: %w: want a template such as {.nodes[*].id}", template, err)
	}
	return p, nil
}

// printPath prints the parts of a JSON document that a template selects, and a newline unless the template ends with one.
func (a *App) printPath(template string, b []byte) error {
	p, err := parsePath(template)
	if err != nil {
		return Usage(err)
	}
	var tree any
	if err := json.Unmarshal(b, &tree); err != nil {
		return fmt.Errorf("print answer: %w", err)
	}
	var out bytes.Buffer
	if err := p.Execute(&out, tree); err != nil {
		return Usage(fmt.Errorf("jsonpath %q: %w", template, err))
	}
	if !bytes.HasSuffix(out.Bytes(), []byte("\n")) {
		out.WriteByte('\n')
	}
	_, err = a.Env.Stdout.Write(out.Bytes())
	return err
}
