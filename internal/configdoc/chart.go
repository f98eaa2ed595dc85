package configdoc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// chartReadme is the chart's page; its values come from the comments of values.yaml.
const chartReadme = "helm/lofamo/README.md"

const chartIntroduction = `# The chart lofamo

LO|FA|MO, fault supervision for clusters, in Kubernetes: agents as a DaemonSet, supervisors as a StatefulSet. docs/install.md in the
repository walks through an installation, and docs/adr/0037-in-kubernetes.md gives the reasons for the design. In short:

    helm upgrade --install lofamo helm/lofamo --namespace lofamo --values values.yaml --set-file inventory=inventory.yaml
    helm test lofamo --namespace lofamo

` + "`make generate`" + ` makes this page from values.yaml. The chart refuses other keys, and invalid values.

## Values

| key | default | description |
|---|---|---|
`

// chartPage returns the chart's page.
func chartPage(root string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, "helm/lofamo/values.yaml"))
	if err != nil {
		return "", fmt.Errorf("values of the chart: %w", err)
	}
	return chartIntroduction + chartValues(string(b)), nil
}

// value is a key of values.yaml, with the comment above it.
type value struct {
	key, preset, about string
	parent             bool // other keys are below it
}

// chartValues returns the rows of the table. A comment belongs to the key below it if both have the same indentation: others are examples.
func chartValues(text string) string {
	var (
		all    []value
		path   []string
		about  []string
		indent = -1 // of the comment
	)
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		depth := len(line) - len(strings.TrimLeft(line, " "))
		switch {
		case trimmed == "":
			about = nil
			continue
		case strings.HasPrefix(trimmed, "#"):
			if depth != indent {
				about = nil
			}
			about, indent = append(about, strings.TrimSpace(trimmed[1:])), depth
			continue
		case strings.HasPrefix(trimmed, "- "):
			last := &all[len(all)-1]
			last.preset, last.parent = strings.TrimSuffix(last.preset, "]"), false
			if last.preset == "" {
				last.preset = "["
			} else {
				last.preset += ", "
			}
			last.preset += "{" + trimmed[2:] + "}]"
			continue
		}
		key, preset, _ := strings.Cut(trimmed, ":")
		path = append(path[:min(depth/2, len(path))], key)
		if indent != depth {
			about = nil
		}
		preset, _, _ = strings.Cut(strings.TrimSpace(preset), " #")
		all = append(all, value{strings.Join(path, "."), preset, strings.Join(about, " "), preset == ""})
		about = nil
	}
	var out strings.Builder
	for _, v := range all {
		if v.parent && v.about == "" {
			continue
		}
		preset := ""
		if v.preset != "" {
			preset = "`" + v.preset + "`"
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", v.key, strings.ReplaceAll(preset, "|", `\|`), strings.ReplaceAll(v.about, "|", `\|`))
	}
	return out.String()
}
