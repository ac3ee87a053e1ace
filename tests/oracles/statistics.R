# Values of R for the tests that import tests/against_r.py. Run in the root of the repository:
#     Rscript tests/oracles/statistics.R
# It writes statistics.json and the tables beside it. Sources of the tables, with the licence of the R package:
#   chile      FLACSO's survey before the plebiscite of 1988 (Fox; carData 3.0-5, GPL-2 or later)
#   womenlf    Social Change in Canada Project, 1977 (Fox; carData 3.0-5, GPL-2 or later)
#   prestige   Canadian occupations, 1971 (Fox; carData 3.0-5, GPL-2 or later)
#   birthwt    Baystate Medical Center, 1986 (Hosmer and Lemeshow 1989; MASS 7.3-58, GPL-2 or GPL-3)
#   mtcars     Motor Trend, 1974 (Henderson and Velleman 1981; datasets 4.2, part of R, GPL-2 or GPL-3)
#   swiss      Swiss fertility, 1888 (Mosteller and Tukey 1977; datasets 4.2, part of R, GPL-2 or GPL-3)
#   orthodont  Growth of teeth (Potthoff and Roy 1964; nlme 3.1-162, GPL-2 or later)
#   dyestuff2  Simulated yields (Box and Tiao 1973; lme4 1.1-31, GPL-2 or later)
# The estimates of single trials in meta_bcg and meta_normand are those of metadat 1.2 (GPL-2 or later).
suppressMessages({
  library(MASS); library(carData); library(nnet); library(glmnet); library(sandwich); library(metafor)
  library(nlme); library(lme4); library(jsonlite)
})
here <- "tests/oracles"
write <- function(d, name) {
  write.csv(d, file.path(here, paste0(name, ".csv")), row.names = FALSE, quote = FALSE)
  d
}
found <- list(R = R.version.string)

chile <- write(na.omit(Chile[, c("region", "sex", "age", "education", "vote")]), "chile")
women <- write(Womenlf, "womenlf")
births <- birthwt
births$race <- c("white", "black", "other")[births$race]
births <- write(births[, c("low", "age", "lwt", "race", "smoke", "ptl", "ht", "ui", "ftv", "bwt")], "birthwt")
cars <- write(cbind(model = gsub(" ", "_", rownames(mtcars)), mtcars), "mtcars")
jobs <- write(na.omit(Prestige[, c("education", "income", "women", "prestige", "type")]), "prestige")
cantons <- write(cbind(canton = gsub(" ", "_", rownames(swiss)), swiss), "swiss")

# Multinomial models: rows are classes, columns coefficients.
several <- function(formula, data, target, reference) {
  data[[target]] <- relevel(factor(data[[target]]), ref = reference)
  m <- do.call(multinom, list(formula, data, trace = FALSE, reltol = 1e-15, abstol = 1e-14, maxit = 5000))
  s <- summary(m)
  list(classes = rownames(coef(m)), names = colnames(coef(m)), coef = coef(m), std_err = s$standard.errors,
       aic = AIC(m))
}
found$chile_A <- several(vote ~ education + age + sex, chile, "vote", "A")
found$chile_Y <- several(vote ~ education + age + sex, chile, "vote", "Y")
found$womenlf <- several(partic ~ hincome + children, women, "partic", "not.work")

# Whole-number weights: R's lm divides variances by them; repeated rows are frequencies.
births$w <- 100 + 50 * births$ftv
m <- lm(bwt ~ age + lwt, births, weights = w)
r <- lm(bwt ~ age + lwt, births[rep(seq_len(nrow(births)), births$w), ])
found$weights_birthwt <- list(precision = sqrt(diag(vcov(m))), df_precision = m$df.residual,
  frequency = sqrt(diag(vcov(r))), df_frequency = r$df.residual, coef = coef(m))
m <- lm(mpg ~ wt + hp, cars, weights = carb)
r <- lm(mpg ~ wt + hp, cars[rep(seq_len(nrow(cars)), cars$carb), ])
found$weights_mtcars <- list(precision = sqrt(diag(vcov(m))), df_precision = m$df.residual,
  frequency = sqrt(diag(vcov(r))), df_frequency = r$df.residual, coef = coef(m))

# Elastic net: glmnet's lambda and alpha; the intercept first.
net <- function(y, X, family, lambda, alpha) {
  g <- glmnet(X, y, family, lambda = lambda, alpha = alpha, thresh = 1e-22, maxit = 1e8)
  list(lambda = lambda, alpha = alpha, names = c("intercept", colnames(X)), coef = as.numeric(coef(g)))
}
X <- as.matrix(births[, c("age", "lwt", "smoke", "ptl", "ht", "ui", "ftv")])
Z <- as.matrix(cantons[, c("Agriculture", "Examination", "Education", "Catholic", "Infant.Mortality")])
found$glmnet_birthwt <- net(births$bwt, X, "gaussian", 60, 0.5)
found$glmnet_birthwt_ridge <- net(births$bwt, X, "gaussian", 60, 0)
found$glmnet_swiss <- net(cantons$Fertility, Z, "gaussian", 1.5, 0.3)
found$glmnet_low <- net(births$low, X, "binomial", 0.05, 0.4)

# Sandwich errors of links that are not canonical: R's use the expected information.
sandwiched <- function(m) {
  c(list(names = names(coef(m)), coef = coef(m)),
    sapply(c("HC0", "HC1", "HC2", "HC3"), function(kind) sqrt(diag(vcovHC(m, type = kind))), simplify = FALSE))
}
tight <- glm.control(epsilon = 1e-15, maxit = 200)
found$hc_gamma <- sandwiched(glm(income ~ education + women, Gamma("log"), jobs, control = tight))
found$hc_probit <- sandwiched(glm(low ~ lwt + smoke + age, binomial("probit"), births, control = tight))

# AIC with R's constants.
found$aic_linear_birthwt <- AIC(lm(bwt ~ age + lwt, births))
found$aic_linear_swiss <- AIC(lm(Fertility ~ Education + Catholic, cantons))
inverse <- function(formula, data) {
  m <- glm(formula, inverse.gaussian("log"), data, control = tight)
  list(aic = AIC(m), deviance = deviance(m), log_likelihood = as.numeric(logLik(m)))
}
found$aic_inverse_prestige <- inverse(income ~ education + women, jobs)
found$aic_inverse_birthwt <- inverse(bwt ~ age + lwt, births)

# Calibration of a model that was fitted to other rows: with an offset, and jointly.
calibrated <- function(formula, fit_rows, test_rows) {
  m <- glm(formula, binomial, fit_rows, control = tight)
  y <- test_rows[[as.character(formula[[2]])]]
  s <- predict(m, test_rows)
  large <- glm(y ~ offset(s), binomial, control = tight)
  both <- glm(y ~ s, binomial, control = tight)
  list(large = coef(large), large_error = sqrt(diag(vcov(large))), joint = coef(both), joint_error = sqrt(diag(vcov(both))))
}
found$calibration_birthwt <- calibrated(low ~ age + lwt + smoke, births[births$race == "white", ], births[births$race != "white", ])
women$work <- as.numeric(women$partic != "not.work")
east <- women$region %in% c("Ontario", "Quebec")
found$calibration_womenlf <- calibrated(work ~ hincome + children, women[east, ], women[!east, ])

# Meta-analysis: tau2 and I2 of each method.
pooled <- function(d) {
  one <- function(method) { m <- rma(yi, vi, data = d, method = method); list(tau2 = m$tau2, i2 = m$I2 / 100) }
  list(yi = as.numeric(d$yi), vi = as.numeric(d$vi), REML = one("REML"), DL = one("DL"), PM = one("PM"))
}
found$meta_bcg <- pooled(escalc("RR", ai = tpos, bi = tneg, ci = cpos, di = cneg, data = dat.bcg))
found$meta_normand <- pooled(escalc("MD", m1i = m1i, sd1i = sd1i, n1i = n1i, m2i = m2i, sd2i = sd2i, n2i = n2i,
                                    data = dat.normand1999))

# Profile intervals of the standard deviation of a random intercept: the restricted likelihood written out, and lme4.
restricted <- function(formula, group, data) {
  y <- model.response(model.frame(formula, data)); X <- model.matrix(formula, data); n <- length(y); p <- ncol(X)
  S <- outer(data[[group]], data[[group]], "==")
  minus2 <- function(tau, sigma) {
    V <- tau^2 * S + sigma^2 * diag(n); W <- solve(V); M <- t(X) %*% W %*% X
    r <- y - X %*% solve(M, t(X) %*% W %*% y)
    (n - p) * log(2 * pi) + as.numeric(determinant(V)$modulus + determinant(M)$modulus + t(r) %*% W %*% r)
  }
  profile <- function(tau) {
    s <- sd(y)
    optimize(function(l) minus2(tau, exp(l)), log(s) + c(-4, 2), tol = 1e-10)$objective
  }
  best <- optimize(profile, c(0, 5 * sd(y)), tol = 1e-9)
  tau <- best$minimum; least <- best$objective
  at0 <- profile(0)
  if (at0 <= least) { tau <- 0; least <- at0 }
  gap <- function(t) profile(t) - least - qchisq(0.95, 1)
  low <- if (at0 - least < qchisq(0.95, 1)) 0 else uniroot(gap, c(0, tau), tol = 1e-9)$root
  high <- uniroot(gap, c(max(tau, 1e-6), 20 * sd(y)), tol = 1e-9)$root
  list(tau = tau, low = low, high = high)
}
teeth <- write(as.data.frame(Orthodont)[, c("Subject", "distance", "age", "Sex")], "orthodont")
dyes <- write(as.data.frame(Dyestuff2), "dyestuff2")
found$tau_orthodont <- restricted(distance ~ age + Sex, "Subject", transform(teeth, Subject = as.character(Subject)))
found$tau_dyestuff2 <- restricted(Yield ~ 1, "Batch", transform(dyes, Batch = as.character(Batch)))
found$tau_birthwt <- restricted(bwt ~ age + lwt, "race", births)

mixed <- function(formula, data) {
  m <- glmer(formula, data, binomial, nAGQ = 25)
  ci <- confint(m, parm = "theta_", method = "profile", oldNames = FALSE, devtol = 1e-9)
  list(tau = as.numeric(getME(m, "theta")), low = as.numeric(ci[1]), high = as.numeric(ci[2]))
}
found$tau_cbpp <- mixed(cbind(incidence, size - incidence) ~ period + (1 | herd), cbpp)
found$tau_womenlf <- mixed(work ~ hincome + children + (1 | region), women)

writeLines(toJSON(found, digits = NA, auto_unbox = TRUE, pretty = TRUE), file.path(here, "statistics.json"))
