// Package sandbox lets Helm render a chart that nobody trusts.
//
// A chart is data: its templates are a program that may never end, its schema
// may refer to other hosts and to files, and what it renders may not survive a
// YAML parser. Render is the one way in. It copies the chart, refuses schemas that
// reach out or never end, and lets a worker (package worker) render the templates,
// which are rewritten there so that they report what they do and stay within bounds:
// what exceeds these is told in words of templates; what the bounds do not see ends
// with the worker. Helm renders and acts in one call, so Render takes that call as a
// function, and gives Helm a chart whose templates are what the worker rendered.
//
// Invariants:
//
//   - rendering is bounded in time, in steps, in memory and in output, and an
//     Exceeded error ends that one rendering only;
//   - rendering reaches no network and no files. For a lookup and, if it is allowed,
//     a name of DNS it asks this process;
//   - a chart that stays within the bounds renders to the same bytes as with plain
//     Helm;
//   - the chart and the values of the caller are not changed.
//
// The time of a rendering ends with its context.
package sandbox
