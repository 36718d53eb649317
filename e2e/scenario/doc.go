// Package scenario is what the suites of end-to-end tests share: control planes that
// end with the test, an agent under the race detector, repositories, registries and
// buckets, and words to wait for what the agent makes of them.
//
// A suite is a package of tests about one subject. Its tests call Alongside first,
// which makes them wait for one of the few places that the machine has for tests
// with control planes, whichever suite they are of. Then they start what they need:
//
//   - StartTier, a tier with an agent and nothing else. Tier.Row gives each row of a
//     table a namespace and a repository of its own, so that rows run at the same time;
//   - StartHelmTier, the same with a Helm repository, a registry and buckets;
//   - StartStage, a fleet that the repositories of the test describe.
//
// Everything that is started ends with the test. Nothing sleeps for an effect:
// Eventually asks until an answer is right, and fails with the last wrong one. A
// test fails as well if the race detector of an agent found something, or if an
// agent panicked.
package scenario
