package configdoc

import (
	"fmt"
	"strings"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

// pageHead is the beginning of the reference.
const pageHead = `# Configuration reference

` + "`make generate`" + ` makes this page from the structs that the programs read. Do not edit it: edit the comments in
the code.

Configurations are YAML. A program reports all unknown keys and all values outside their range at once, each with the
field, the value and the allowed values. To check a file:
` + "`lofamo-agent config check FILE`, `lofamo-supervisor config check FILE`, `lofamo-executor config check FILE`" + `.
A file may be a pipe, such as /dev/stdin. Its maximum size is 1 MiB, or 64 MiB for that of a supervisor or an
executor process and for an inventory, which may list nodes.
Write durations as 25ms, 10s, 1h30m. The third column has the default, unless the default is computed from other values.
` + "`NAME[].KEY`" + ` is a key of each entry of a list, ` + "`NAME.*.KEY`" + ` of each value of a map.

` + "`deploy/config`" + ` and the packages' documentation have files with every default and explanation;
` + "`lofamoctl cluster init`" + ` makes complete files.
`

// Files are all generated files, by their paths in the module.
func Files(root string) (map[string]string, error) {
	s := Open(root)
	out := map[string]string{}
	var doc strings.Builder
	doc.WriteString(pageHead)
	for _, d := range []struct {
		title, pkg, name, file, head string
		defaults                     any
	}{
		{
			"The agent: agent.yaml", "internal/config", "Agent", "deploy/config/agent.yaml",
			"/etc/lofamo/agent.yaml: the configuration of a node, read by both halves and their daemon, with every key and its default. " +
				"Required keys have no default, and are commented out with '#'. 'lofamoctl cluster init' makes a complete file. " +
				"Check it with: lofamo-agent config check --config /etc/lofamo/agent.yaml",
			config.DefaultAgent(),
		},
		{
			"The supervisor: supervisor.yaml", "internal/config", "Supervisor", "deploy/config/supervisor.yaml",
			"/etc/lofamo/supervisor.yaml: the configuration of one supervisor replica, with every key and its default. " +
				"Required keys have no default, and are commented out with '#'. 'lofamoctl cluster init' makes a complete file. " +
				"Check it with: lofamo-supervisor config check /etc/lofamo/supervisor.yaml",
			config.DefaultSupervisor(),
		},
		{
			"The executor process: executor.yaml", "internal/executor/process", "Config", "deploy/config/executor.yaml",
			"/etc/lofamo/executor.yaml: the configuration of the executor process, with every key and its default. " +
				"Required keys have no default, and are commented out with '#'. Check it with: lofamo-executor config check /etc/lofamo/executor.yaml",
			process.Default(),
		},
		{"The inventory of lofamoctl cluster", "internal/inventory", "Inventory", "", "", inventory.Inventory{}},
	} {
		fields, text, err := s.Struct(d.pkg, d.name)
		if err != nil {
			return nil, err
		}
		defaults, err := Defaults(d.defaults)
		if err != nil {
			return nil, fmt.Errorf("defaults of %s: %w", d.name, err)
		}
		fmt.Fprintf(&doc, "\n## %s\n\n%s\n\n%s", d.title, text, Markdown(fields, defaults))
		if d.file != "" {
			out[d.file] = YAML(d.head, fields, defaults)
		}
	}
	presets, err := Presets()
	if err != nil {
		return nil, err
	}
	doc.WriteString(presets)
	out["docs/configuration.md"] = doc.String()
	page, err := chartPage(root)
	if err != nil {
		return nil, err
	}
	out[chartReadme] = page
	definition, err := policy.Definition()
	if err != nil {
		return nil, err
	}
	out["deploy/kubernetes/crd-faultpolicies.yaml"] = string(definition)
	return out, nil
}
