// Command gen prints docs/metrics.md. It is run by `make generate`, at the top of the repository.
package main

import (
	"fmt"
	"os"

	"github.com/lofamo/lofamo/internal/metricsdoc"
)

func main() {
	page, err := metricsdoc.Page("deploy/prometheus")
	if err == nil {
		_, err = os.Stdout.Write(page)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
}
