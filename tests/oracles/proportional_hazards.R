# Tests of proportional hazards by survival's cox.zph, stratified by site:
#   Rscript tests/oracles/proportional_hazards.R
# Writes the tables (CSV) and cox.zph's tables (JSON) beside this file.
library(survival)
library(jsonlite)
here <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(FALSE), value = TRUE)))

found <- function(name, data, columns, response = "Surv(time, status)", ties = "efron", sites = 12,
                  shares = seq_len(sites)) {
  data <- data[complete.cases(data[, columns]), ]
  set.seed(2026)
  data$site <- sprintf("s%03d", sample(sites, nrow(data), replace = TRUE, prob = shares))
  times <- intersect(c("start", "time"), names(data))
  write.csv(data[, c("site", times, "status", columns)], file.path(here, paste0(name, ".csv")),
            row.names = FALSE, quote = FALSE)
  formula <- as.formula(paste(response, "~", paste(columns, collapse = " + "), "+ strata(site)"))
  fit <- coxph(formula, data, ties = ties, eps = 1e-13, iter.max = 50, control = coxph.control(
    eps = 1e-13, iter.max = 50, timefix = FALSE))
  scales <- c("identity", "log", "rank", "km")
  tests <- lapply(setNames(scales, scales), function(scale) {
    table <- cox.zph(fit, transform = scale, terms = FALSE)$table
    list(chisq = unname(table[, "chisq"]), df = unname(table[, "df"]), p = unname(table[, "p"]))
  })
  one <- coxph(update(formula, . ~ . - strata(site)), data, ties = ties)  # one baseline hazard for all sites
  list(shared = list(coef = unname(coef(one)), se = unname(sqrt(diag(vcov(one))))),
       se = unname(sqrt(diag(vcov(fit)))), coef = unname(coef(fit)), names = names(coef(fit)), tests = tests)
}

deaths <- subset(colon, etype == 2)  # one record of each person
deaths$lev <- as.numeric(deaths$rx == "Lev")
deaths$lev5fu <- as.numeric(deaths$rx == "Lev+5FU")
ill <- pbc
ill$status <- as.numeric(ill$status == 2)
ill$female <- as.numeric(ill$sex == "f")
ill$logbili <- round(log(ill$bili), 6)
hearts <- heart
hearts$status <- hearts$event
hearts$time <- hearts$stop
hearts$moved <- as.numeric(hearts$transplant == "1")
hearts$age <- round(hearts$age, 6)
hearts$year <- round(hearts$year, 6)
set <- list(
  colon = found("colon", deaths, c("lev", "lev5fu", "sex", "age", "obstruct", "adhere", "nodes")),
  small_sites = found("small_sites", deaths, c("lev", "lev5fu", "sex", "age", "obstruct", "adhere", "nodes"),
                      sites = 200, shares = rep(1, 200)),
  pbc = found("pbc", ill, c("age", "female", "edema", "logbili", "albumin"), ties = "breslow"),
  heart = found("heart", hearts, c("age", "year", "surgery", "moved"), "Surv(start, time, status)")
)
write_json(set, file.path(here, "proportional_hazards.json"), digits = NA, auto_unbox = TRUE, pretty = TRUE)
