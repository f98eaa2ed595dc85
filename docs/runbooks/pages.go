// Package runbooks has the alerts' pages for programs: supervisors serve them beside the fault map, so that an alert's
// link opens where nothing outside can be reached.
package runbooks

import "embed"

// Pages are the files of this folder: one for each alert, named by it, and README.md with the list of them.
//
//go:embed *.md
var Pages embed.FS
