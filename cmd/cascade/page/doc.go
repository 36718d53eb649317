// Package page makes the pages about a tier: facts in, HTML out.
//
// It is pure. Facts are objects of the tier's own API; a view model says what is shown of
// them, and templates write it. Invariants:
//
//   - all text comes through html/template, on one line and bounded, whatever is in it;
//   - no page is larger than 200 KB, however many clusters there are: what is more is
//     counted, and on the next page;
//   - what is old has its age, and is not shown as ready;
//   - a state is a word, never only a colour;
//   - nothing on a page changes anything, and nothing is asked of another host.
//
// Failure model: a fact that could not be read is named in Facts.Missing, and the page says
// so. A view of too much is cut, and says how much is left out.
package page
